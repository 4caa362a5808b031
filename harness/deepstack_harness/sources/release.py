"""A released version as a source: the cache first, then the package index."""

from collections.abc import Callable
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

from packaging.version import Version

from deepstack_harness.sources.archive import Archive
from deepstack_harness.sources.archive_files import DamagedArchive
from deepstack_harness.sources.cache import CachedRelease
from deepstack_harness.sources.known_package import KnownPackage
from deepstack_harness.sources.source import NoSuchMember, SourceFile, decode

if TYPE_CHECKING:
    from deepstack_harness.sources.remote import RemoteArchive


T = TypeVar("T")


class Release:
    """A package as it was published under one version."""

    def __init__(self, package: KnownPackage, version: Version) -> None:
        """Note package and version; nothing is looked up before a file is read."""
        self.package = package.name
        self.version = version
        self.label = f"{package.name} {version}"
        self._recognised = package
        self._cache = CachedRelease(package.name, version)

    def read(self, member: str) -> SourceFile:
        """See `Source.read`; the shown name is that of the cached file, which can be opened."""
        found = self._cache.load(member)
        if found:
            return decode(found[0], str(found[1]))
        if self._cache.is_absent(member):
            raise NoSuchMember(self.label, member)
        try:
            data, shown = self._fetch(member)
        except NoSuchMember as error:
            self._cache.note_absent(member)
            raise NoSuchMember(self.label, member) from error
        return decode(data, str(self._cache.store(member, data) or shown))

    def mentioning(self, folder: str, word: str) -> list[str]:
        """See `Source.mentioning`; list and files are cached, so that a second look reads the disk only."""
        listing = f"{folder}/mentioning-{word}.txt"
        found = self._cache.load(listing)
        if found:
            return found[0].decode().splitlines()
        texts = self._texts(folder, word)
        for member, data in texts.items():
            self._cache.store(member, data)
        names = sorted(texts)
        self._cache.store(listing, "\n".join(names).encode())
        return names

    def _texts(self, folder: str, word: str) -> dict[str, bytes]:
        found = self._from_cached_archive(lambda archive: archive.texts(folder, word))
        return self._remote.texts(folder, word) if found is None else found

    def _fetch(self, member: str) -> tuple[bytes, str]:
        found = self._from_cached_archive(lambda archive: archive.read_bytes(member))
        return self._remote.read(member) if found is None else found

    def _from_cached_archive(self, read: Callable[[Archive], T]) -> T | None:
        """Read something from an archive that was downloaded whole; return None where there is none."""
        for path in self._cache.archives():
            with suppress(DamagedArchive):  # the next download replaces it
                return read(Archive(self._recognised, path))
        return None

    @cached_property
    def _remote(self) -> "RemoteArchive":
        # Not at the top: the clients for an index take longer to import than a local source to bind.
        from deepstack_harness.sources.index import Index

        return Index(self._recognised).find(self.version)
