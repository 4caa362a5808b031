"""A wheel or an sdist as a source: single files are read, nothing is unpacked."""

import email
import tarfile
import zipfile
import zlib
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Self

from harness.errors import UsageError
from harness.upstream.source import PACKAGE_MARK, NoSuchMember, SourceFile, decode

SUFFIXES = (".whl", ".zip", ".tar.gz", ".tgz")

# What zipfile and tarfile raise for damaged or unreadable files; gzip's own error is an OSError.
_BROKEN = (zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError, OSError, NotImplementedError, RuntimeError)


class DamagedArchive(UsageError):
    """The file is no readable archive: cut short, or not permitted."""


class Archive:
    """A wheel (.whl), or an sdist or repository archive (.zip, .tar.gz)."""

    def __init__(self, path: Path) -> None:
        """Look inside; raises `UsageError` when this is no vLLM or cannot be read."""
        self.path = path.absolute()
        try:
            with _Members(self.path) as members:
                names = members.names()
                name, version = _distribution(members, names)
        except _BROKEN as error:
            raise self._damaged(error) from error
        self._names = frozenset(names)
        self._top = self._find_package(names, f"{name} {version}" if name else "no vLLM package")
        self.label = f"{name} {version}" if name else f"vllm at {self.path}"

    def read(self, member: str) -> SourceFile:
        """See `Source.read`."""
        return decode(*self.read_bytes(member))

    def read_bytes(self, member: str) -> tuple[bytes, str]:
        """The bytes of a file, and the name to show: `ARCHIVE/MEMBER`, as zipimport has it."""
        name = self._top + member
        if name not in self._names:
            raise NoSuchMember(self.label, member)
        try:
            with _Members(self.path) as members:
                return members.read(name), f"{self.path}/{name}"
        except _BROKEN as error:
            raise self._damaged(error) from error

    def _damaged(self, error: Exception) -> DamagedArchive:
        kind = "a wheel" if self.path.suffix == ".whl" else "an archive"
        return DamagedArchive(f"'{self.path}' cannot be read as {kind}, is it complete? ({error})")

    def _find_package(self, names: Iterable[str], content: str) -> str:
        """What stands before `vllm/`: nothing in a wheel, the top folder in an sdist."""
        tops = [name.partition(PACKAGE_MARK)[0] for name in names if f"/{PACKAGE_MARK}" in f"/{name}"]
        if not tops:
            raise UsageError(f"'{self.path}' holds {content}, not vLLM: give a wheel or an sdist of vllm")
        return min(tops, key=len)


class _Members:
    """One reading interface over zip and tar, open while in a `with`."""

    def __init__(self, path: Path) -> None:
        zipped = path.suffix in {".whl", ".zip"}
        self._archive = zipfile.ZipFile(path) if zipped else tarfile.open(path)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._archive.close()

    def names(self) -> list[str]:
        is_zip = isinstance(self._archive, zipfile.ZipFile)
        return self._archive.namelist() if is_zip else self._archive.getnames()

    def read(self, name: str) -> bytes:
        if isinstance(self._archive, zipfile.ZipFile):
            return self._archive.read(name)
        file = self._archive.extractfile(name)
        return file.read() if file else b""


def _distribution(members: _Members, names: list[str]) -> tuple[str | None, str | None]:
    """Name and version from the metadata: `*.dist-info/METADATA`, or an sdist's `*/PKG-INFO`."""
    for name in names:
        if name.count("/") == 1 and name.endswith((".dist-info/METADATA", "/PKG-INFO")):
            said = email.message_from_bytes(members.read(name))
            return said["Name"], said["Version"]
    return None, None
