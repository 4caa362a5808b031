"""Atomic writes: readers see the old file or the whole new one, never a part."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give the path of a file beside `path` to write to; it takes the place of `path` when the block ends.

    What was written is flushed to the disk before that.  Where the block raises, `path` stays as it was, and
    nothing is left beside it.  Raises `OSError`.
    """
    # Not `tempfile`: its files are for their owner alone, and runs are shared.
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
