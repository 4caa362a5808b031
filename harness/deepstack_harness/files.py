"""Files: atomic writes, the data files of the harness in a wheel or a checkout, and the folder of the cache.

A reader of a file that is written atomically sees the old file or the whole new one, never a part. Data
files have a schema version, and are read as typed entries.
"""

import os
import secrets
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Generic, TypeVar

import msgspec
import platformdirs

from deepstack_harness.errors import UsageError


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give the path of a file next to `path` to write to; it replaces `path` when the block ends.

    What was written is flushed to the disk before that. Where the block raises, `path` stays as it was, and
    the other file is removed. Raises `OSError`.
    """
    # Not `tempfile`: only the owner can read its files, and runs are shared.
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    try:
        yield partial
        _flush(partial)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def write_atomically(path: Path, data: bytes) -> None:
    """Write a whole file; raises `OSError`, and then the file is as it was."""
    with replacing(path) as partial:
        partial.write_bytes(data)


def _flush(path: Path) -> None:
    """Wait until the disk has the file: after a power cut a renamed file could be empty otherwise."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


LARGEST = 2**29
"""Bytes of the largest file of a run that is read: about 700,000 rows, ten times those of a night."""


def read_regular(path: Path, largest: int = LARGEST) -> bytes:
    """Return the content of a regular file of at most `largest` bytes, or of a link to one.

    Raises `UsageError` that quotes the path for anything else: a fifo would block, and a device has no end.
    Of a file that grows, what it held at first is returned. Raises `OSError` where there is no file, or none
    that can be read.
    """
    refuse_special(path)
    # Without blocking: a fifo may have taken the place of the file since then.
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as stream:  # noqa: PTH123
        size = os.fstat(stream.fileno()).st_size
        if size > largest:
            raise UsageError(f"'{path}' has {size:,} bytes, more than the {largest:,} of a file that is read")
        return stream.read(size)


def refuse_special(path: Path) -> None:
    """Raise `UsageError` that quotes the path of what is no regular file; `OSError` where nothing is."""
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode):
        kind = next((name for name, test in _KINDS.items() if test(mode)), "special file")
        raise UsageError(f"'{path}' is a {kind}, not a regular file")


_KINDS: Mapping[str, Callable[[int], bool]] = {
    "folder": stat.S_ISDIR,
    "fifo": stat.S_ISFIFO,
    "socket": stat.S_ISSOCK,
    "device": lambda mode: stat.S_ISCHR(mode) or stat.S_ISBLK(mode),
}


_PACKAGE = Path(__file__).resolve().parent
_CHECKOUT = _PACKAGE.parents[1]
CACHE_VARIABLE = "DEEPSTACK_HARNESS_CACHE"


def data(name: str) -> Path:
    """Return the path of `name`, such as `fixtures/incidents.toml`: wheel first, then checkout.

    Raises `UsageError` when neither has it: then the installation is incomplete.
    """
    candidates = [_PACKAGE / "_data" / name, _CHECKOUT / name]
    for path in candidates:
        if path.exists():
            return path
    raise UsageError(f"'{name}' is in neither {candidates[0]} nor {candidates[1]}: reinstall the harness")


def cache() -> Path:
    """Return the folder of the cache; `DEEPSTACK_HARNESS_CACHE` names another one.

    It may not exist yet, and may not be writable.
    """
    chosen = os.environ.get(CACHE_VARIABLE)
    return Path(chosen) if chosen else Path(platformdirs.user_cache_dir("deepstack-harness"))


def store_hypothesis_in_cache() -> None:
    """Let hypothesis here and in worker processes write to our cache, unless the caller has chosen a folder.

    By default it writes to the current directory.
    """
    os.environ.setdefault("HYPOTHESIS_STORAGE_DIRECTORY", str(cache() / "hypothesis"))


T = TypeVar("T")


class _Version(msgspec.Struct):
    schema_version: int


def load_file(path: Path, kind: type[T], what: str, version: int) -> T:
    """Read a TOML file, or a JSON file by its suffix, as `kind`, a `msgspec.Struct` with a `schema_version`.

    Raises `UsageError` that names the file as not being `what`, with the wrong entry and its place, or with
    the version of the file. With `forbid_unknown_fields` a misspelt key is an error, too: it would
    silently change nothing.
    """
    decode = msgspec.json.decode if path.suffix == ".json" else msgspec.toml.decode
    try:
        text = read_regular(path)
        found = decode(text, type=_Version).schema_version
        if found == version:
            return decode(text, type=kind)
    except (OSError, UsageError, msgspec.MsgspecError) as error:
        raise UsageError(f"{path} is not {what}: {error}") from None
    raise UsageError(f"{path} has schema_version {found}, this harness reads {version}")


@dataclass(frozen=True)
class DataFile(Generic[T]):
    """A file of entries that comes with the harness, such as `fixtures/incidents.toml`.

    Entries are the list under `key`, each a `kind`, which is a `msgspec.Struct`; `what` names the file in
    messages.
    """

    name: str
    what: str
    key: str
    kind: type[T]
    version: int = 1

    @cached_property
    def entries(self) -> tuple[T, ...]:
        """The entries of the file itself; raises `UsageError` as `read` does."""
        return self.read(data(self.name))

    def read(self, path: Path) -> tuple[T, ...]:
        """Read the entries of any file of this form; raises `UsageError` as `load_file` does."""
        fields = [("schema_version", int), (self.key, tuple[self.kind, ...])]  # type: ignore[name-defined]
        whole = msgspec.defstruct("Whole", fields, forbid_unknown_fields=True)
        entries: tuple[T, ...] = getattr(load_file(path, whole, self.what, self.version), self.key)
        return entries
