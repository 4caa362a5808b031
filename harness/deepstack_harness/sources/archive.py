"""A wheel or an sdist as a source."""

import email
import re
from collections.abc import Sequence
from pathlib import Path

from packaging.utils import canonicalize_name
from packaging.version import Version

from deepstack_harness.errors import UsageError
from deepstack_harness.sources.archive_files import ArchiveFiles, open_files
from deepstack_harness.sources.known_package import KnownPackage, any_of
from deepstack_harness.sources.source import NoSuchMember, SourceFile, decode
from deepstack_harness.sources.tree import written_version
from deepstack_harness.sources.tree_files import check_name

_NAME = re.compile(r"[A-Za-z0-9._-]+")


class Archive:
    """A wheel (.whl), or an sdist or repository archive (.zip, .tar.gz, .tgz).  Nothing is unpacked."""

    def __init__(
        self, package: KnownPackage, path: Path, files: ArchiveFiles | None = None, *, shown: str = ""
    ) -> None:
        """Read the metadata, and the list of members unless `files` has it.

        `shown` names a file that was downloaded: its path is that of a temporary folder.  Raises `UsageError`
        when the archive does not hold the package, and what `open_files` raises.
        """
        self.path = path.absolute()
        self.package = package.name
        self._files = files or open_files(self.path)
        top = top_of(package, self._files)
        name, self.version = _distribution(self._files)
        if top is None:
            raise _not_held(shown or str(self.path), [package], self._files)
        self._top = top
        if name is None or self.version is None:
            self.version = self._written_version(package.version_file)
        told = f" ({self.version})" if self.version else ""
        self.label = (
            f"{name} {self.version}" if name and self.version else f"{package.name} at {self.path}{told}"
        )

    def read(self, member: str) -> SourceFile:
        """See `Source.read`."""
        return decode(*self.read_bytes(member))

    def read_bytes(self, member: str) -> tuple[bytes, str]:
        """Return the bytes of a file, and the name to show: `ARCHIVE/MEMBER`, as zipimport has it."""
        data = self._data(self._top + member)
        if data is None:
            raise NoSuchMember(self.label, member)
        return data, f"{self.path}/{self._top}{member}"

    def mentioning(self, folder: str, word: str) -> list[str]:
        """See `Source.mentioning`."""
        return sorted(self.texts(folder, word))

    def texts(self, folder: str, word: str) -> dict[str, bytes]:
        """Return the Python files right in `folder` that have `word`, with their bytes."""
        inside = [name for name in self._files.names if _is_right_in(self._top + folder, name)]
        names = [check_name(name, self.path) for name in inside]
        texts = ((name, data) for name, data in self._files.read(names) if word.encode() in data)
        return {name.removeprefix(self._top): data for name, data in texts}

    def _data(self, name: str) -> bytes | None:
        return dict(self._files.read([name]))[name] if name in self._files.names else None

    def _written_version(self, member: str) -> Version | None:
        data = self._data(self._top + member)
        return written_version(data.decode("utf-8", "replace")) if data else None


def open_archive(path: Path, packages: Sequence[KnownPackage]) -> Archive:
    """Recognise the package that an archive holds; raise `UsageError` when it is none."""
    files = open_files(path.absolute())
    found = [package for package in packages if top_of(package, files) is not None]
    if not found:
        raise _not_held(str(path.absolute()), packages, files)
    return Archive(found[0], path, files)


def top_of(package: KnownPackage, files: ArchiveFiles) -> str | None:
    """Return the folder in which the package lies: none in a wheel, one in an sdist; None for neither."""
    mark = f"{package.mark}/"
    tops = {name.partition(mark)[0] for name in files.names if f"/{mark}" in f"/{name}"}
    return min((top for top in tops if _depth(top) <= 1), key=len, default=None)


def _not_held(path: str, packages: Sequence[KnownPackage], files: ArchiveFiles) -> UsageError:
    """Return the error for an archive that holds none of the packages, or no files of the one it names."""
    name, version = _distribution(files)
    content = f"{name} {version}" if name else "something else"
    stub = next((one for one in packages if name and one.name == canonicalize_name(name)), None)
    if stub is not None:
        return UsageError(
            f"'{path}' is {content} without {stub.mark}/, a stub: give a wheel, or a source tree"
        )
    return UsageError(
        f"'{path}' holds {content}, not {any_of([one.title for one in packages])}: "
        f"give a wheel or an sdist of {any_of([one.name for one in packages])}"
    )


def _depth(name: str) -> int:
    return name.removeprefix("./").count("/")


def _is_right_in(folder: str, name: str) -> bool:
    return name.rpartition("/")[0] == folder and name.endswith(".py")


def _distribution(files: ArchiveFiles) -> tuple[str | None, Version | None]:
    """Return name and version from the metadata: `*.dist-info/METADATA`, or an sdist's `*/PKG-INFO`."""
    described = (".dist-info/METADATA", "/PKG-INFO")
    names = sorted(name for name in files.names if _depth(name) == 1 and name.endswith(described))
    if not names:
        return None, None
    told = email.message_from_bytes(dict(files.read(names[:1]))[names[0]])
    name, version = str(told["Name"]), str(told["Version"])
    try:
        return (name if _NAME.fullmatch(name) else None), Version(version)
    except ValueError:  # InvalidVersion, or a number of more digits than Python reads
        return None, None
