"""The text that a user writes for SOURCE, and the source that it names.

SOURCE is a release (`vllm==0.22.1`), an installation (`installed:vllm`), a path, or a plugin with the
package whose classes it changes (`PLUGIN over BASE`). `parse_source` checks the syntax for any
package name, and `locate` knows which packages can be judged. A release is read from the cache first,
then from the index.
"""

import io
import os
import re
import stat
import zipfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from deepstack_harness.errors import UsageError
from deepstack_harness.sources.archive import SUFFIXES, Archive, DamagedArchive, open_archive
from deepstack_harness.sources.cache import CachedRelease
from deepstack_harness.sources.folder import kind_of
from deepstack_harness.sources.source import (
    KnownPackage,
    NoSuchMember,
    Source,
    SourceFile,
    decode,
    files_having,
)
from deepstack_harness.sources.tree import Tree, installed, open_tree
from deepstack_harness.text import shortened

if TYPE_CHECKING:
    from deepstack_harness.sources.index import RemoteArchive


FORMS = (
    "PACKAGE==VERSION, installed:PACKAGE, or the path of a wheel, an sdist (.tar.gz, .zip) or a source tree"
)

_INSTALLED = "installed"
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
_COMPARES = re.compile(rf"\s*{_NAME.pattern}\s*(?:\[[^]]*\])?\s*(?:===?|[<>~!]=|[<>])")


@dataclass(frozen=True)
class ReleaseRequest:
    """A release on a package index."""

    package: str
    version: Version


@dataclass(frozen=True)
class InstalledRequest:
    """The package that this Python would import."""

    package: str


@dataclass(frozen=True)
class PathRequest:
    """A wheel, an sdist or a source tree."""

    path: str


SourceRequest = ReleaseRequest | InstalledRequest | PathRequest


def parse_source(text: str) -> SourceRequest:
    """Parse what a user wrote for SOURCE; raise `UsageError` that quotes it and gives the right form.

    A requirement wins over a file of the same name: that is written `./vllm==0.22.1`.
    """
    head, colon, rest = text.partition(":")
    if head == _INSTALLED:
        name = rest if colon else ""
        if not _NAME.fullmatch(name):
            raise UsageError(
                f"'{text}' names no package: write installed:PACKAGE, or ./{text} for a path of that name"
            )
        return InstalledRequest(canonicalize_name(name))
    if text.startswith((".", "~")) or os.sep in text:
        return PathRequest(text)
    if _is_version(text):
        raise UsageError(
            f"'{text}' names no package: write PACKAGE=={text}, or ./{text} for a path of that name"
        )
    return _parse_release(text) if _COMPARES.match(text) else PathRequest(text)


def names_source(text: str) -> bool:
    """Return whether the text is a release, an installation, or a path that begins as one or exists.

    Everything else may be the name of a commit, a number as well: tags are named so.
    """
    if text.startswith((".", "~", os.sep)):
        return True
    if _is_version(text):
        return False
    return not isinstance(parse_source(text), PathRequest) or Path(text).exists()


def expand_shorthand(package: str, text: str) -> str:
    """Turn the value of `--vllm` and the like, where the option names the package, into a SOURCE.

    A version and `installed` are completed; everything else is taken as it is. Raises
    `UsageError` for a SOURCE of another package.
    """
    if _is_version(text):
        return f"{package}=={text}"
    if text == _INSTALLED:
        return f"{_INSTALLED}:{package}"
    request = parse_source(text)
    if not isinstance(request, PathRequest) and request.package != package:
        raise UsageError(f"'{text}' is not a source of {package}: write --source {text}")
    return text


def _is_version(text: str) -> bool:
    try:
        Version(text)
    except ValueError:  # InvalidVersion, or a number of more digits than Python reads
        return False
    return True


def _parse_release(text: str) -> ReleaseRequest:
    """Parse a requirement that has to name one release exactly."""
    try:
        requirement = Requirement(text)
    except ValueError as error:  # InvalidRequirement, or a number of more digits than Python reads
        why = str(error).splitlines()[0]
        raise UsageError(
            f"'{shortened(text, 200)}' is not a requirement ({why}): a source is {FORMS}"
        ) from None
    specifiers = list(requirement.specifier)
    exact = len(specifiers) == 1 and specifiers[0].operator == "==" and _is_version(specifiers[0].version)
    if not exact or requirement.extras or requirement.marker:
        raise UsageError(
            f"'{shortened(text, 200)}' does not name one release: write {requirement.name}==VERSION"
        )
    return ReleaseRequest(canonicalize_name(requirement.name), Version(specifiers[0].version))


OVER = " over "
"""Between the two sources, in the text that names both and in the label."""


class Overlaid:
    """Two sources read as one: files of the plugin's module are the plugin's, all others are the base's."""

    def __init__(self, plugin: Source, module: str, base: Source) -> None:
        """Take `module`, the plugin's top-level folder."""
        self._plugin, self._module, self.base = plugin, module, base
        self.package: str = plugin.package
        self.version: Version | None = plugin.version
        self.label = f"{plugin.label}{OVER}{base.label}"

    def read(self, member: str) -> SourceFile:
        """See `Source.read`."""
        return self._source_of(member).read(member)

    def mentioning(self, folder: str, word: str) -> list[str]:
        """See `Source.mentioning`."""
        return self._source_of(folder).mentioning(folder, word)

    def python_files(self) -> Mapping[str, bytes]:
        """See `Source.python_files`: only those of the plugin."""
        return self._plugin.python_files()

    def _source_of(self, member: str) -> Source:
        return self._plugin if member.partition("/")[0] == self._module else self.base


def every_python_file(source: Source) -> Mapping[str, bytes]:
    """Return what may be imported of a source: its Python files, and those of the base of a plugin."""
    files = source.python_files()
    return {**source.base.python_files(), **files} if isinstance(source, Overlaid) else files


def split_over(text: str) -> tuple[str, str | None]:
    """Return both parts of `PLUGIN over BASE`, the second one None where there is none.

    A path that exists is a path, whatever its name. Raises `UsageError` for a part that is empty.
    """
    plugin, separator, base = text.partition(OVER)
    if not separator or Path(text).expanduser().exists():
        return text, None
    if not plugin.strip() or not base.strip():
        raise UsageError(f"'{text}' names no two sources: write PLUGIN{OVER}BASE")
    return plugin.strip(), base.strip()


T = TypeVar("T")

_PACKED = "python-files.zip"
"""All Python files of a release: 12 MB for the 3,231 of vLLM 0.33.0."""


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
        cached = self._cache.load(member)
        if cached:
            return decode(cached[0], str(cached[1]))
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
        listing = f"{folder}/below-mentioning-{word}.txt"
        cached = self._cache.load(listing)
        if cached:
            return cached[0].decode().splitlines()
        files = self.python_files()
        names = files_having(files, folder, word)
        for member in names:
            self._cache.store(member, files[member])
        self._cache.store(listing, "\n".join(names).encode())
        return names

    def python_files(self) -> Mapping[str, bytes]:
        """See `Source.python_files`; they are cached in one file."""
        return self._python_files

    @cached_property
    def _python_files(self) -> Mapping[str, bytes]:
        if self._packed is not None:
            return self._packed
        files = self._from_cached_archive(Archive.python_files)
        files = self._remote.python_files() if files is None else files
        written = io.BytesIO()
        with zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as pack:
            for name, data in files.items():
                pack.writestr(name, data)
        self._cache.store(_PACKED, written.getvalue())
        return files

    @cached_property
    def _packed(self) -> Mapping[str, bytes] | None:
        """Every Python file, from the cache; None where they were not read yet."""
        cached = self._cache.load(_PACKED)
        if cached is None:
            return None
        with zipfile.ZipFile(io.BytesIO(cached[0])) as pack:
            return {name: pack.read(name) for name in pack.namelist()}

    def _fetch(self, member: str) -> tuple[bytes, str]:
        at_hand = self.__dict__.get("_python_files") or self._packed or {}
        if member in at_hand:
            return at_hand[member], f"{self.label}/{member}"
        data = self._from_cached_archive(lambda archive: archive.read_bytes(member))
        return self._remote.read(member) if data is None else data

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


def locate(text: str, packages: Sequence[KnownPackage]) -> Source:
    """Return the source that `text` names; `packages` are those that can be judged.

    No network is used before a file of a release is read. Raises `UsageError` for what is no source, and for
    a source of another package.
    """
    request = parse_source(text)
    if isinstance(request, PathRequest):
        return _open_path(request.path, packages)
    by_name = {package.name: package for package in packages}
    if request.package not in by_name:
        raise UsageError(f"'{text}': {request.package} cannot be judged, only {', '.join(by_name)} can")
    package = by_name[request.package]
    return installed(package) if isinstance(request, InstalledRequest) else Release(package, request.version)


def _open_path(text: str, packages: Sequence[KnownPackage]) -> Tree | Archive:
    try:
        path = Path(text).expanduser()
        mode = path.stat().st_mode
    except (OSError, ValueError, RuntimeError) as error:
        why = getattr(error, "strerror", None) or error
        raise UsageError(f"'{text}' cannot be opened ({why}): a source is {FORMS}") from error
    if stat.S_ISDIR(mode):
        return open_tree(path, packages)
    if not stat.S_ISREG(mode):
        raise UsageError(f"'{text}' is {kind_of(mode)}: a source is {FORMS}")
    if not path.name.endswith(SUFFIXES):
        raise UsageError(f"'{text}' ends in none of {', '.join(SUFFIXES)}: a source is {FORMS}")
    return open_archive(path, packages)
