"""The folder of a run: read typed, and written line by line so that a killed run can go on.

Readers change nothing, and refuse by name what no run has written. The writer has an appended case on the
disk when `append` returns. `read_nights` reads a folder that holds folders of runs.
"""

from __future__ import annotations

import fcntl
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from operator import attrgetter
from pathlib import Path
from typing import BinaryIO, TypeVar

import msgspec

from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.verdicts import Row
from deepstack_harness.errors import MachineError, UsageError
from deepstack_harness.files import read_regular, refuse_special, write_atomically
from deepstack_harness.runs.records import About, CaseRecord, Files, decode, run_files_in
from deepstack_harness.text import json_line, shortened

T = TypeVar("T")


@dataclass
class RunPart:
    """One run, or one shard of it, as its files have it.

    `rows` are those of cases that ended, `bytes_of` the length of each file that they take from its start on;
    `notes` describe what else the files hold.
    """

    files: Files
    about: About
    rows: list[Row] = field(default_factory=list)
    cases: list[CaseRecord] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    bytes_of: dict[Path, int] = field(default_factory=dict)


@dataclass(frozen=True)
class StoredRun:
    """A run with all its shards; `abouts` has one `run.json` for each, `notes` what a reader should know."""

    name: str
    rows: tuple[Row, ...]
    cases: tuple[CaseRecord, ...]
    abouts: tuple[About, ...] = ()
    notes: tuple[str, ...] = ()
    began: str = ""
    """The start of a run that was stored without a `run.json`."""

    @property
    def started(self) -> str:
        """The time at which the first shard began, ISO 8601."""
        return min((about.started for about in self.abouts), default=self.began)

    @property
    def unfinished(self) -> str:
        """How far a run came that did not come to its end, in words; empty for a whole run."""
        shards = max((int(about.shard.partition("/")[2]) for about in self.abouts if about.shard), default=1)
        away = max(shards - len(self.abouts), 0) if self.abouts else 0
        if not away and all(about.finished for about in self.abouts):
            return ""
        planned = max(sum(about.planned.cases for about in self.abouts), len(self.cases))
        played = f"{len(self.cases):,} of {planned:,} cases have run"
        return f"{played}, and {away} of {shards} shards are not here" if away else played

    @property
    def versions(self) -> tuple[str, ...]:
        """What the run was measured with, as `About.versions` has it; several lines where it is mixed."""
        return tuple(dict.fromkeys(", ".join(about.versions) for about in self.abouts))

    @property
    def settings(self) -> dict[str, str]:
        """The settings of all shards, as `About.settings` has them."""
        return {name: value for about in self.abouts for name, value in about.settings.items()}

    @property
    def mixed(self) -> str:
        """Why the rows are not of one environment, in a sentence; empty where they are."""
        if len(self.versions) > 1:
            return f"its shards ran with {' and with '.join(self.versions)}"
        for about in self.abouts[1:]:
            if differ := different_settings(self.abouts[0].settings, about.settings):
                return f"its shards ran with other settings: {'; '.join(differ)}"
        rows = Counter(row.torch for row in self.rows if row.torch)
        if len(rows) < 2:
            return ""
        counted = (f"{number:,} with torch {torch}" for torch, number in rows.most_common())
        return f"its rows were measured {' and '.join(counted)}"


def read_stored(folder: Path | str) -> StoredRun:
    """Read the run in a folder, finished or not.

    Raises `UsageError` for a folder without a run, and for a damaged one.
    """
    folder = Path(folder)
    parts = [read_part(files) for files in run_files_in(folder)]
    if not parts:
        raise UsageError(f"'{folder}' holds no run: it has no run.json, which 'run --out DIR' writes")
    shards = [part.files.shard for part in parts if part.files.shard]
    if len({(part.about.plan, part.files.shard.count if part.files.shard else 1) for part in parts}) > 1:
        names = ", ".join(part.files.about.name for part in parts)
        raise UsageError(f"'{folder}' holds parts of different runs: {names}")
    present, count = {shard.index for shard in shards}, max((shard.count for shard in shards), default=0)
    missing = (f"shard {n}/{count} is not here" for n in range(1, count + 1) if n not in present)
    run = StoredRun(
        folder.resolve().name,
        tuple(row for part in parts for row in part.rows),
        tuple(case for part in parts for case in part.cases),
        tuple(part.about for part in parts),
        (*missing, *(note for part in parts for note in part.notes)),
    )
    if not run.mixed:
        return run
    return replace(run, notes=(f"not one environment, so not one run: {run.mixed}", *run.notes))


def read_part(files: Files) -> RunPart:
    """Read one shard; raises `UsageError` that names the file, and the line, at fault."""
    part = RunPart(files, read_about(files))
    part.cases = list(_ended_records(part, files.cases, CaseRecord))
    ended = {case.case for case in part.cases}
    # Rows come before their case, so those of a case that did not end come last.
    part.rows = list(_ended_records(part, files.rows, Row[Rule], lambda row: row.case in ended))
    _refuse_incomplete(part)
    return part


def read_about(files: Files) -> About:
    """Read `run.json`; raises `UsageError` for another file under its name."""
    return decode(_read(files.about), About, f"'{files.about}'")


def read_rows(path: Path) -> tuple[Row, ...]:
    """Read rows that a command wrote with `--json`; a torn last line is ignored.

    Raises `UsageError` that names the file, and the line, at fault.
    """
    *lines, _ = _read(path).split(b"\n")
    return tuple(
        decode(line, Row[Rule], f"line {number} of '{path}'") for number, line in enumerate(lines, 1)
    )


def _ended_records(
    part: RunPart, path: Path, kind: type[T], has_ended: Callable[[T], bool] = bool
) -> Iterator[T]:
    """Decode the lines of a file, but for those of a case that did not end.

    A torn last line is noted if the run did not finish, and an error if it did.
    """
    if part.about.finished is None and not path.exists():
        return
    *lines, torn = _read(path).split(b"\n")
    if torn and part.about.finished is not None:
        raise UsageError(f"'{path}' ends in the middle of a line, though the run finished: the file was cut")
    if torn:
        part.notes.append(f"{path}: the last line was cut off, and is left out")
    records = [decode(line, kind, f"line {number} of '{path}'") for number, line in enumerate(lines, 1)]
    ended = [record for record in records if has_ended(record)]
    part.bytes_of[path] = sum(len(line) + 1 for line in lines[: len(ended)])
    if len(ended) < len(records):
        part.notes.append(f"{path}: {len(records) - len(ended)} rows of a case that did not end are left out")
    yield from ended


def _read(path: Path) -> bytes:
    try:
        return read_regular(path)
    except OSError as error:
        raise UsageError(f"cannot read '{path}', which a run has: {error.strerror}") from None


def _refuse_incomplete(part: RunPart) -> None:
    """Refuse a case that is there twice or without all rows, and a finished run without all cases."""
    named = [case.case for case in part.cases]
    if len(named) > len(set(named)):
        twice = next(name for name in named if named.count(name) > 1)
        raise UsageError(
            f"'{part.files.cases}' has case {twice} more than once: the file is not that of one run"
        )
    rows = Counter(row.case for row in part.rows)
    for case in part.cases:
        if (seen := rows[case.case]) != case.rows:
            raise UsageError(
                f"'{part.files.rows}' has {seen} rows of case {case.case}, which has {case.rows}"
            )
    if part.about.finished is not None and len(named) != part.about.planned.cases:
        raise UsageError(
            f"'{part.files.cases}' has {len(named)} cases, but the run finished "
            f"with {part.about.planned.cases}: the file was cut"
        )


def read_nights(folder: Path) -> tuple[list[StoredRun], list[str]]:
    """Read the runs in the folders of `folder`, oldest first.

    A run that does not read is left out and noted: one damaged night must not end all later ones.
    """
    runs, notes = [], []
    for path in sorted(path for path in folder.iterdir() if any(run_files_in(path))):
        try:
            runs.append(read_stored(path))
        except UsageError as error:
            notes.append(f"not in the history: {error}")
    return sorted(runs, key=attrgetter("started")), notes


class RunWriter:
    """The files of one run, or of one shard, open for appending."""

    def __init__(self, files: Files, about: About, *, resume: bool) -> None:
        """Make the files, or, with `resume`, append to those of a run with the same plan.

        Raises `UsageError` for a folder that holds a run already (without `resume`), a
        run of other cases, or one that another process writes; nothing is changed then.
        """
        existing = [path for path in (files.about, files.rows, files.cases) if path.exists()]
        if existing and not (resume and files.about.exists()):
            raise UsageError(
                f"'{existing[0]}' exists already: continue with --resume, or choose another --out folder"
            )
        if files.folder.exists() and not files.folder.is_dir():
            raise UsageError(f"'{files.folder}' is no folder: choose another --out folder")
        _refuse_other_run(files, about)
        with _machine_errors(files.folder):
            files.folder.mkdir(parents=True, exist_ok=True)
        with ExitStack() as opened:  # closed where the rest raises
            self._rows = opened.enter_context(_open(files.rows))
            self._cases = opened.enter_context(_open(files.cases))
            try:
                fcntl.flock(self._rows, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise UsageError(f"another process is writing a run into '{files.folder}'") from None
            self.part = read_part(files) if existing else RunPart(files, about)
            for stream in (self._rows, self._cases):
                with _machine_errors(Path(stream.name)):
                    stream.truncate(self.part.bytes_of.get(Path(stream.name), 0))
            self._write_about(finished=None)
            opened.pop_all()

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
        """Close the files. Data left in a buffer belongs to an append that raised, on a full disk."""
        for stream in (self._rows, self._cases):
            with suppress(OSError):
                stream.close()

    def _write_about(self, finished: str | None) -> None:
        self.part.about = replace(self.part.about, finished=finished)
        path, text = self.part.files.about, msgspec.json.encode(self.part.about)
        with _machine_errors(path):
            write_atomically(path, msgspec.json.format(text, indent=2) + b"\n")


def now() -> str:
    """Return the time in UTC, ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _refuse_other_run(files: Files, about: About) -> None:
    for other in run_files_in(files.folder):
        count = other.shard.count if other.shard else 1
        if count != (files.shard.count if files.shard else 1):
            raise UsageError(f"'{files.folder}' holds a run in {count} shards: choose another --out folder")
        earlier = read_about(other)
        if earlier.schema_version != about.schema_version:
            raise UsageError(
                f"'{files.folder}' holds a run of schema_version {earlier.schema_version} "
                f"('{other.about.name}'), this harness writes {about.schema_version}: "
                "it can be read, not continued; choose another --out folder"
            )
        if earlier.plan != about.plan:
            raise UsageError(
                f"'{files.folder}' holds a run of other cases ('{other.about.name}'): repeat its selection, "
                "tier and devices, or choose another --out folder"
            )
        if earlier.versions != about.versions:
            raise UsageError(
                f"'{files.folder}' holds a run with {', '.join(earlier.versions)}; this is "
                f"{', '.join(about.versions)}: a run belongs to one environment; continue it in its own, or "
                "choose another --out folder"
            )
        if differ := different_settings(earlier.settings, about.settings):
            raise UsageError(
                f"'{files.folder}' holds a run with other settings: {'; '.join(differ)}: a run belongs to "
                "one environment; set them as before, or choose another --out folder"
            )


def different_settings(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return `NAME: not set before, '1' now` for each setting that differs, by name."""
    differ = [name for name in sorted(before.keys() | now.keys()) if before.get(name) != now.get(name)]
    return [f"{name}: {_quoted(before.get(name))} before, {_quoted(now.get(name))} now" for name in differ]


def _quoted(value: str | None) -> str:
    return "not set" if value is None else f"'{shortened(value, 100)}'"


def _open(path: Path) -> BinaryIO:
    with _machine_errors(path):
        if path.exists():
            refuse_special(path)
        return path.open("ab")


def _append(stream: BinaryIO, records: Iterable[object]) -> None:
    with _machine_errors(Path(stream.name)):
        stream.write(b"".join(map(json_line, records)))
        stream.flush()
        os.fsync(stream.fileno())


@contextmanager
def _machine_errors(path: Path) -> Iterator[None]:
    """Raise `MachineError` with a sentence for an `OSError`."""
    try:
        yield
    except OSError as error:
        raise MachineError(
            f"cannot write '{path}': {error.strerror}; earlier results are there: continue with --resume"
        ) from None
