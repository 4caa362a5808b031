"""A wheel, an sdist or a repository archive as a source, read member by member.

Nothing is unpacked to the disk, and nobody vouches for an archive: a number of members or a size
without an end, paths that lead out, links, pipes and devices are refused by name.
"""

import email
import gzip
import io
import re
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Protocol

from packaging.utils import canonicalize_name
from packaging.version import Version

from deepstack_harness.errors import UsageError
from deepstack_harness.sources.folder import check_name, refuse_irregular
from deepstack_harness.sources.source import (
    FILE_MIB,
    MEMBERS,
    TOO_MANY,
    UNPACKED_MIB,
    KnownPackage,
    NoSuchMember,
    SourceFile,
    decode,
    files_having,
    joined_by_or,
    limited,
)
from deepstack_harness.sources.tree import written_version

_ZIPPED = (".whl", ".zip")
SUFFIXES = (*_ZIPPED, ".tar.gz", ".tgz")

# What zipfile, tarfile and their decompressors raise for files that are damaged, encrypted or
# not permitted; gzip's own error is an OSError, zipfile's for encryption a RuntimeError,
# for an unknown compression a NotImplementedError.
_BROKEN = (
    zipfile.BadZipFile,
    tarfile.TarError,
    zlib.error,
    EOFError,
    OSError,
    RuntimeError,
    ValueError,
    struct.error,
)


class DamagedArchive(UsageError):
    """The file is no readable archive: cut short, encrypted or not permitted."""


class ArchiveFiles(Protocol):
    """The members of one archive."""

    names: frozenset[str]

    def read(self, names: Iterable[str]) -> Iterator[tuple[str, bytes]]:
        """Yield names and bytes of members; raise `UsageError` for no regular file, or one too large."""
        ...


def open_files(path: Path) -> ArchiveFiles:
    """Read the list of an archive's members.

    Raises `DamagedArchive`, and `UsageError` for an archive that is above a limit or has a
    path that leads out of it.
    """
    return _Zip(path) if path.suffix in _ZIPPED else _Tar(path)


class _Zip:
    """A wheel, or another zip file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with _damage_named(path):
            MEMBERS.check(_count_in_zip(path), path, TOO_MANY)
            with zipfile.ZipFile(path) as archive:
                self.names = _checked(path, archive.namelist())

    def read(self, names: Iterable[str]) -> Iterator[tuple[str, bytes]]:
        # Members may share their bytes, so that the file's size means little.
        with _damage_named(self._path), zipfile.ZipFile(self._path) as archive:
            contents = ((name, read_zipped(archive, name, self._path)) for name in names)
            yield from limited(contents, self._path, _UNPACKED)


class _Tar:
    """An sdist, or another gzipped tar file; its members are found once, and read by their offsets."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._members: dict[str, tarfile.TarInfo] = {}
        # tarfile goes from header to header: a count and a size are seen before they are exceeded.
        with _damage_named(path), self._opened() as file, tarfile.open(fileobj=file, mode="r:") as archive:
            for count, member in enumerate(archive, 1):
                MEMBERS.check(count, path, TOO_MANY)
                self._members[member.name] = member
        self.names = _checked(path, self._members)

    def read(self, names: Iterable[str]) -> Iterator[tuple[str, bytes]]:
        with _damage_named(self._path), self._opened() as file:
            # In their order in the file: to go back, gzip starts from the beginning.
            members = sorted((self._members[name] for name in names), key=lambda member: member.offset_data)
            yield from ((member.name, self._read(member, file)) for member in members)

    def _read(self, member: tarfile.TarInfo, file: "_Bounded") -> bytes:
        shown = f"{self._path}/{member.name}"
        kinds = [
            (member.issym() or member.islnk(), f"a link to {member.linkname!r}"),
            (member.isdir(), "a folder"), (member.isfifo(), "a named pipe"), (member.isdev(), "a device"),
        ]  # fmt: skip
        kind = next((words for matches, words in kinds if matches), "no regular file")
        refuse_irregular(stat.S_IFREG if member.isreg() and not member.issparse() else 0, shown, kind)
        FILE_MIB.check(member.size, shown)
        file.seek(member.offset_data)
        data = file.read(member.size)
        if len(data) < member.size:
            raise EOFError("the file ends inside a member")
        return data

    @contextmanager
    def _opened(self) -> Iterator["_Bounded"]:
        with gzip.open(self._path) as file:
            yield _Bounded(file, self._path)


class _Bounded(io.BufferedIOBase):
    """A decompressed stream that refuses to be read beyond the limit, before it decompresses that far."""

    def __init__(self, file: gzip.GzipFile, path: Path) -> None:
        self._file = file
        self._path = path

    def read(self, size: int | None = -1, /) -> bytes:
        assert size is not None
        assert size >= 0  # tarfile and we pass a size
        FILE_MIB.check(size, self._path)  # a header may claim to have any size
        UNPACKED_MIB.check(self._file.tell() + size, self._path, _UNPACKED)
        return self._file.read(size)

    def seek(self, offset: int, whence: int = 0, /) -> int:
        assert whence == 0
        UNPACKED_MIB.check(offset, self._path, _UNPACKED)
        return self._file.seek(offset)

    def tell(self) -> int:
        return self._file.tell()


def read_zipped(archive: zipfile.ZipFile, name: str, shown: object) -> bytes:
    """Return the bytes of one member of a zip file, whatever size its directory claims.

    `shown` is the archive's name in messages. Raises `UsageError` for a link and the like,
    and for a member above the limit; raises what `zipfile` raises for damage.
    """
    info = archive.getinfo(name)
    kind = stat.S_IFMT(info.external_attr >> 16)  # 0 where the archive was not made on a Unix
    refuse_irregular(stat.S_IFDIR if info.is_dir() else kind or stat.S_IFREG, f"{shown}/{name}")
    FILE_MIB.check(info.file_size, f"{shown}/{name}")
    with archive.open(info) as file:
        return file.read()


def _count_in_zip(path: Path) -> int:
    """Return the number of members that the end record of a zip file claims.

    `zipfile` makes an object for each member before it returns the number. Layout: APPNOTE 6.3.10, 4.3.14 to
    4.3.16; the end record is followed by a comment of up to 65,535 bytes.
    """
    with path.open("rb") as file:
        size = file.seek(0, io.SEEK_END)
        start = max(0, size - (22 + 20 + 0xFFFF))
        file.seek(start)
        tail = file.read()
        end = tail.rfind(b"PK\x05\x06")
        if end < 0 or len(tail) < end + 22:
            return 0  # damaged: `zipfile` reports it
        (count,) = struct.unpack_from("<H", tail, end + 10)
        if count < 0xFFFF or tail[max(0, end - 20) : end - 16] != b"PK\x06\x07":
            return int(count)
        (large,) = struct.unpack_from("<Q", tail, end - 20 + 8)
        file.seek(large)
        record = file.read(56)
        return (
            int(struct.unpack_from("<Q", record, 32)[0]) if record.startswith(b"PK\x06\x06") else int(count)
        )


def _checked(path: Path, names: Iterable[str]) -> frozenset[str]:
    """Refuse an archive with a path that would be outside of the folder it is unpacked to."""
    for name in names:
        parts = PurePosixPath(name.replace("\\", "/")).parts
        if ".." in parts or name.startswith(("/", "\\")) or "\0" in name:
            raise UsageError(f"'{path}' holds a path that leads out of it: {name!r}")
    return frozenset(names)


_UNPACKED = "is too large when unpacked"


@contextmanager
def _damage_named(path: Path) -> Iterator[None]:
    try:
        yield
    except _BROKEN as error:
        kind = "a wheel" if path.suffix == ".whl" else "an archive"
        raise DamagedArchive(f"'{path}' cannot be read as {kind}, is it complete? ({error})") from error


_NAME = re.compile(r"[A-Za-z0-9._-]+")


class Archive:
    """A wheel (.whl), or an sdist or repository archive (.zip, .tar.gz, .tgz). Nothing is unpacked."""

    def __init__(
        self, package: KnownPackage, path: Path, files: ArchiveFiles | None = None, *, shown: str = ""
    ) -> None:
        """Read the metadata, and the list of members unless `files` has it.

        `shown` names a file that was downloaded: its path is that of a temporary folder. Raises `UsageError`
        when the archive does not hold the package, and what `open_files` raises.
        """
        self.path = path.absolute()
        self.package = package.name
        self._module = package.module
        self._files = files or open_files(self.path)
        top = top_of(package, self._files)
        name, self.version = _distribution(self._files)
        if top is None:
            raise _not_held(shown or str(self.path), [package], self._files)
        self._top = top
        if name is None or self.version is None:
            data = self._data(self._top + package.version_file)
            self.version = written_version(data.decode("utf-8", "replace")) if data else None
        version = f" ({self.version})" if self.version else ""
        self.label = (
            f"{name} {self.version}" if name and self.version else f"{package.name} at {self.path}{version}"
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
        return files_having(self.python_files(), folder, word)

    def python_files(self) -> Mapping[str, bytes]:
        """See `Source.python_files`; the archive is read once."""
        return self._python_files

    @cached_property
    def _python_files(self) -> dict[str, bytes]:
        top = f"{self._top}{self._module}/"
        inside = [name for name in self._files.names if name.startswith(top) and name.endswith(".py")]
        names = [check_name(name, self.path) for name in sorted(inside)]
        return {name.removeprefix(self._top): data for name, data in self._files.read(names)}

    def _data(self, name: str) -> bytes | None:
        return dict(self._files.read([name]))[name] if name in self._files.names else None


def open_archive(path: Path, packages: Sequence[KnownPackage]) -> Archive:
    """Recognise the package that an archive holds; raise `UsageError` when it is none."""
    files = open_files(path.absolute())
    held = [package for package in packages if top_of(package, files) is not None]
    if not held:
        raise _not_held(str(path.absolute()), packages, files)
    return Archive(held[0], path, files)


def top_of(package: KnownPackage, files: ArchiveFiles) -> str | None:
    """Return the folder that has the package: none in a wheel, one in an sdist; None for neither."""
    mark = f"{package.mark}/"
    tops = {name.partition(mark)[0] for name in files.names if f"/{mark}" in f"/{name}"}
    return min((top for top in tops if _depth(top) <= 1), key=len, default=None)


def _not_held(path: str, packages: Sequence[KnownPackage], files: ArchiveFiles) -> UsageError:
    """Return the error for an archive that holds none of the packages, or no files of the one it names."""
    name, version = _distribution(files)
    content = f"{name} {version}" if name else "something else"
    stub = next((package for package in packages if name and package.name == canonicalize_name(name)), None)
    if stub is not None:
        return UsageError(
            f"'{path}' is {content} without {stub.mark}/, a stub: give a wheel, or a source tree"
        )
    return UsageError(
        f"'{path}' holds {content}, not {joined_by_or([package.title for package in packages])}: "
        f"give a wheel or an sdist of {joined_by_or([package.name for package in packages])}"
    )


def _depth(name: str) -> int:
    return name.removeprefix("./").count("/")


def _distribution(files: ArchiveFiles) -> tuple[str | None, Version | None]:
    """Return name and version from the metadata: `*.dist-info/METADATA`, or an sdist's `*/PKG-INFO`."""
    described = (".dist-info/METADATA", "/PKG-INFO")
    names = sorted(name for name in files.names if _depth(name) == 1 and name.endswith(described))
    if not names:
        return None, None
    metadata = email.message_from_bytes(dict(files.read(names[:1]))[names[0]])
    name, version = str(metadata["Name"]), str(metadata["Version"])
    try:
        return (name if _NAME.fullmatch(name) else None), Version(version)
    except ValueError:  # InvalidVersion, or a number of more digits than Python reads
        return None, None
