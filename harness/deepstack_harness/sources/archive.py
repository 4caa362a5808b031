"""A wheel or an sdist as a source: single files are read, nothing is unpacked."""

import email
import functools
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from deepstack_harness.errors import UsageError
from deepstack_harness.sources.source import PACKAGE_MARK, NoSuchMember, SourceFile, decode

SUFFIXES = (".whl", ".zip", ".tar.gz", ".tgz")

# What zipfile and tarfile raise for files that are damaged, encrypted or not permitted;
# gzip's own error is an OSError, zipfile's for encryption a RuntimeError.
_BROKEN = (zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError, OSError, RuntimeError)


class DamagedArchive(UsageError):
    """The file is no readable archive: cut short, encrypted or not permitted."""


class Archive:
    """A wheel (.whl), or an sdist or repository archive (.zip, .tar.gz, .tgz)."""

    def __init__(self, path: Path) -> None:
        """Look inside; raises `UsageError` when this is no vLLM or cannot be read."""
        self.path = path.absolute()
        with self._open() as opened:
            self._names = frozenset(opened.names)
            distribution = _distribution(opened)
        tops = [name.partition(PACKAGE_MARK)[0] for name in self._names if f"/{PACKAGE_MARK}" in f"/{name}"]
        if not tops:
            content = distribution or "something else"
            raise UsageError(f"'{self.path}' holds {content}, not vLLM: give a wheel or an sdist of vllm")
        self._top = min(tops, key=len)  # nothing in a wheel, one folder in an sdist
        self.label = distribution or f"vllm at {self.path}"

    def read(self, member: str) -> SourceFile:
        """See `Source.read`."""
        return decode(*self.read_bytes(member))

    def read_bytes(self, member: str) -> tuple[bytes, str]:
        """The bytes of a file, and the name to show: `ARCHIVE/MEMBER`, as zipimport has it."""
        name = self._top + member
        if name not in self._names:
            raise NoSuchMember(self.label, member)
        with self._open() as opened:
            return opened.read(name), f"{self.path}/{name}"

    def mentioning(self, folder: str, word: str) -> list[str]:
        """See `Source.mentioning`."""
        return sorted(self.texts(folder, word))

    def texts(self, folder: str, word: str) -> dict[str, bytes]:
        """The members right in `folder` that have `word`, with their bytes; the archive is opened once."""
        inside = [name for name in self._names if _right_in(self._top + folder, name)]
        with self._open() as opened:
            found = {name.removeprefix(self._top): opened.read(name) for name in inside}
        return {name: data for name, data in found.items() if word.encode() in data}

    @contextmanager
    def _open(self) -> Iterator["_Opened"]:
        try:
            with _zipped(self.path) if self.path.suffix in {".whl", ".zip"} else _tarred(self.path) as opened:
                yield opened
        except _BROKEN as error:
            kind = "a wheel" if self.path.suffix == ".whl" else "an archive"
            raise DamagedArchive(
                f"'{self.path}' cannot be read as {kind}, is it complete? ({error})"
            ) from error


def _right_in(folder: str, name: str) -> bool:
    return name.rpartition("/")[0] == folder and name.endswith(".py")


@dataclass(frozen=True)
class _Opened:
    """What zip and tar have in common."""

    names: Sequence[str]
    read: Callable[[str], bytes]


@contextmanager
def _zipped(path: Path) -> Iterator[_Opened]:
    with zipfile.ZipFile(path) as archive:
        yield _Opened(archive.namelist(), archive.read)


@contextmanager
def _tarred(path: Path) -> Iterator[_Opened]:
    with tarfile.open(path) as archive:
        yield _Opened(archive.getnames(), functools.partial(_read_tarred, archive))


def _read_tarred(archive: tarfile.TarFile, name: str) -> bytes:
    file = archive.extractfile(name)
    return file.read() if file else b""


def _distribution(opened: _Opened) -> str | None:
    """`NAME VERSION` from the metadata: `*.dist-info/METADATA`, or an sdist's `*/PKG-INFO`."""
    for name in opened.names:
        if name.count("/") == 1 and name.endswith((".dist-info/METADATA", "/PKG-INFO")):
            said = email.message_from_bytes(opened.read(name))
            return f"{said['Name']} {said['Version']}"
    return None
