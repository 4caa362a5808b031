"""A released version as a source: what is kept on disk first, then the package index."""

from functools import cached_property
from typing import TYPE_CHECKING

from packaging.version import Version

from deepstack_harness.sources import cache
from deepstack_harness.sources.archive import Archive, DamagedArchive
from deepstack_harness.sources.source import NoSuchMember, SourceFile, decode

if TYPE_CHECKING:
    from deepstack_harness.sources.remote import PublishedFile


class Release:
    """vLLM as it was published under one version."""

    def __init__(self, version: Version) -> None:
        """Nothing is looked up before a file is read."""
        self.version = version
        self.label = f"vllm {version}"

    def read(self, member: str) -> SourceFile:
        """See `Source.read`; the shown name is that of the kept file, which can be opened."""
        found = cache.load(self.version, member)
        if found:
            return decode(found[0], str(found[1]))
        try:
            data, shown = self._fetch(member)
        except NoSuchMember as error:
            raise NoSuchMember(self.label, member) from error
        return decode(data, str(cache.store(self.version, member, data) or shown))

    def mentioning(self, folder: str, word: str) -> list[str]:
        """See `Source.mentioning`; the list and the files are kept, so a second look reads the disk only."""
        listing = f"{folder}/mentioning-{word}.txt"
        found = cache.load(self.version, listing)
        if found:
            return found[0].decode().splitlines()
        texts = self._texts(folder, word)
        for member, data in texts.items():
            cache.store(self.version, member, data)
        names = sorted(texts)
        cache.store(self.version, listing, "\n".join(names).encode())
        return names

    def _texts(self, folder: str, word: str) -> dict[str, bytes]:
        for path in cache.archives_of(self.version):
            try:
                return Archive(path).texts(folder, word)
            except DamagedArchive:  # the next download replaces it
                continue
        return self._published.texts(folder, word)

    def _fetch(self, member: str) -> tuple[bytes, str]:
        for path in cache.archives_of(self.version):
            try:
                return Archive(path).read_bytes(member)
            except DamagedArchive:  # the next download replaces it
                continue
        return self._published.read(member)

    @cached_property
    def _published(self) -> "PublishedFile":
        # Not at the top: the clients for an index take longer to import than a local source to bind.
        from deepstack_harness.sources.index import Index

        return Index().find(self.version)
