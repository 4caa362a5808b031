"""The writer of a run's folder: appended cases are on the disk at once, and a killed run can go on."""

import fcntl
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

import msgspec

from deepstack_harness.atomic import write_atomically
from deepstack_harness.clean_text import json_line
from deepstack_harness.contract.row import Row
from deepstack_harness.errors import MachineError, UsageError
from deepstack_harness.results.files import Files, found_in
from deepstack_harness.results.read import RunPart, read_about, read_part
from deepstack_harness.results.records import About, CaseRecord


class RunWriter:
    """The files of one run, or of one shard, open for appending."""

    def __init__(self, files: Files, about: About, *, resume: bool) -> None:
        """Make the files, or, with `resume`, go on behind what a run with the same plan left.

        Raises `UsageError` for a folder that holds a run already (without `resume`), a
        run of other cases, or one that another process writes; nothing is changed then.
        """
        found = [path for path in (files.about, files.rows, files.cases) if path.exists()]
        if found and not (resume and files.about.exists()):
            raise UsageError(
                f"'{found[0]}' exists already: continue with --resume, or choose another --out folder"
            )
        _refuse_others(files, about)
        with _translated(files.folder):
            files.folder.mkdir(parents=True, exist_ok=True)
        self._rows, self._cases = _open(files.rows), _open(files.cases)
        try:
            _lock(self._rows, files.folder)
            self.part = read_part(files) if found else RunPart(files, about)
            self._go_on()
        except BaseException:
            self.close()
            raise

    def append(self, rows: Sequence[Row], case: CaseRecord) -> None:
        """Write a case that ended, its rows first; the disk has both when this returns."""
        _append(self._rows, rows)
        _append(self._cases, [case])
        self.part.rows += rows
        self.part.cases.append(case)

    def finish(self) -> None:
        """Record in `run.json` that the run came to its end, now."""
        self._write_about(finished=now())

    def close(self) -> None:
        """Close the files.  What is left in a buffer is of an append that failed on a full disk, and told."""
        for stream in (self._rows, self._cases):
            with suppress(OSError):
                stream.close()

    def _go_on(self) -> None:
        """Drop the torn lines behind the last whole case of a killed run, and record that the run goes on."""
        for stream in (self._rows, self._cases):
            with _translated(Path(stream.name)):
                stream.truncate(self.part.bytes_of.get(Path(stream.name), 0))
        self._write_about(finished=None)

    def _write_about(self, finished: str | None) -> None:
        self.part.about = replace(self.part.about, finished=finished)
        path, text = self.part.files.about, msgspec.json.encode(self.part.about)
        with _translated(path):
            write_atomically(path, msgspec.json.format(text, indent=2) + b"\n")


def now() -> str:
    """Return the time in UTC, ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _refuse_others(files: Files, about: About) -> None:
    for other in found_in(files.folder):
        count = other.shard.count if other.shard else 1
        if count != (files.shard.count if files.shard else 1):
            raise UsageError(f"'{files.folder}' holds a run in {count} shards: choose another --out folder")
        if read_about(other).plan != about.plan:
            raise UsageError(
                f"'{files.folder}' holds a run of other cases ('{other.about.name}'): repeat its selection, "
                "tier and devices, or choose another --out folder"
            )


def _open(path: Path) -> BinaryIO:
    with _translated(path):
        return path.open("ab")


def _lock(stream: BinaryIO, folder: Path) -> None:
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise UsageError(f"another process is writing a run into '{folder}'") from None


def _append(stream: BinaryIO, records: Iterable[object]) -> None:
    with _translated(Path(stream.name)):
        stream.write(b"".join(map(json_line, records)))
        stream.flush()
        os.fsync(stream.fileno())


@contextmanager
def _translated(path: Path) -> Iterator[None]:
    """Raise `MachineError` with a sentence for an `OSError`."""
    try:
        yield
    except OSError as error:
        raise MachineError(
            f"cannot write '{path}': {error.strerror}; earlier results are kept: continue with --resume"
        ) from None
