"""Readers of a run's folder: they refuse by name what no run has written, and change nothing."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from deepstack_harness.contract.row import Row
from deepstack_harness.errors import UsageError
from deepstack_harness.results.files import Files, found_in
from deepstack_harness.results.records import About, CaseRecord, decode

T = TypeVar("T")


@dataclass
class RunPart:
    """One run, or one shard of it, as its files have it.

    `rows` are those of cases that ended, `bytes_of` the length of each file that they
    take from its start on; `notes` say what else the files hold.
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


def read_stored(folder: Path | str) -> StoredRun:
    """Read the run in a folder, finished or not.

    Raises `UsageError` for a folder without a run, and for a damaged one.
    """
    folder = Path(folder)
    parts = [read_part(files) for files in found_in(folder)]
    if not parts:
        raise UsageError(f"'{folder}' holds no run: it has no run.json, which 'run --out DIR' writes")
    _fit(folder, parts)
    return StoredRun(
        folder.resolve().name,
        tuple(row for part in parts for row in part.rows),
        tuple(case for part in parts for case in part.cases),
        tuple(part.about for part in parts),
        (*_absent(parts), *(note for part in parts for note in part.notes)),
    )


def read_part(files: Files) -> RunPart:
    """Read one shard; raises `UsageError` that names the file, and the line, at fault."""
    part = RunPart(files, read_about(files))
    part.cases = list(_ended(part, files.cases, CaseRecord))
    known = {case.case for case in part.cases}
    # Rows come before their case, so those of a case that did not end stand last.
    part.rows = list(_ended(part, files.rows, Row, lambda row: row.case in known))
    _refuse_incomplete(part)
    return part


def read_about(files: Files) -> About:
    """Read `run.json`; raises `UsageError` for another file under its name."""
    return decode(_bytes(files.about), About, f"'{files.about}'")


def read_rows(path: Path) -> tuple[Row, ...]:
    """Read rows that a command wrote with `--json`; a torn last line is ignored.

    Raises `UsageError` that names the file, and the line, at fault.
    """
    lines, _ = _split(_bytes(path))
    return tuple(decode(line, Row, f"line {number} of '{path}'") for number, line in enumerate(lines, 1))


def _ended(part: RunPart, path: Path, kind: type[T], wanted: Callable[[T], bool] = bool) -> Iterator[T]:
    """Decode the lines of a file, but for those of a case that did not end.

    A torn last line is noted if the run did not finish, and an error if it did.
    """
    if part.about.finished is None and not path.exists():
        return
    lines, torn = _split(_bytes(path))
    if torn and part.about.finished is not None:
        raise UsageError(f"'{path}' ends in the middle of a line, though the run finished: the file was cut")
    if torn:
        part.notes.append(f"{path}: the last line was cut off, and is left out")
    found = [decode(line, kind, f"line {number} of '{path}'") for number, line in enumerate(lines, 1)]
    ended = [record for record in found if wanted(record)]
    part.bytes_of[path] = sum(len(line) + 1 for line in lines[: len(ended)])
    if len(ended) < len(found):
        part.notes.append(f"{path}: {len(found) - len(ended)} rows of a case that did not end are left out")
    yield from ended


def _split(text: bytes) -> tuple[list[bytes], bytes]:
    """Return the whole lines, and what stands behind the last line end."""
    *lines, torn = text.split(b"\n")
    return lines, torn


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read '{path}', which a run has: {error.strerror}") from None


def _refuse_incomplete(part: RunPart) -> None:
    """Refuse a case that is there twice or lacks rows, and a finished run that lacks cases."""
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


def _fit(folder: Path, parts: Sequence[RunPart]) -> None:
    """Refuse shards of different runs."""
    kinds = {(part.about.plan, part.files.shard.count if part.files.shard else 1) for part in parts}
    if len(kinds) > 1:
        names = ", ".join(part.files.about.name for part in parts)
        raise UsageError(f"'{folder}' holds parts of different runs: {names}")


def _absent(parts: Sequence[RunPart]) -> list[str]:
    here = {part.files.shard.index for part in parts if part.files.shard}
    count = max((part.files.shard.count for part in parts if part.files.shard), default=0)
    return [f"shard {index}/{count} is not here" for index in range(1, count + 1) if index not in here]
