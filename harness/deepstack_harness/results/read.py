"""Reads a run's folder; refuses by name what no run has written, and changes nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from deepstack_harness.errors import UsageError
from deepstack_harness.results.files import Files, found_in
from deepstack_harness.results.records import About, CaseRecord, RunRow, decode

if TYPE_CHECKING:
    import pandas as pd

T = TypeVar("T")


@dataclass
class Part:
    """One run, or one shard of it, as its files have it.

    `rows` are those of cases that ended, `bytes_of` how much of each file they take
    from its start on; `notes` say what else the files hold.
    """

    files: Files
    about: About
    rows: list[RunRow] = field(default_factory=list)
    cases: list[CaseRecord] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    bytes_of: dict[Path, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Run:
    """A run with all its shards.

    `rows` has the columns of `RunRow`, `cases` those of `CaseRecord` (nested ones as
    dicts and lists), `meta` one `run.json` for each shard, `notes` what a reader should know.
    """

    name: str
    rows: pd.DataFrame
    cases: pd.DataFrame
    meta: list[dict[str, Any]]
    notes: list[str]

    @cached_property
    def started(self) -> str:
        """When the first shard began, ISO 8601."""
        return min((str(one["started"]) for one in self.meta), default="")


def read_run(folder: Path | str) -> Run:
    """The run in a folder, finished or not; raises `UsageError` for what is no run, or a damaged one."""
    folder = Path(folder)
    parts = [read_part(files) for files in found_in(folder)]
    if not parts:
        raise UsageError(f"'{folder}' holds no run: it has no run.json, which 'run --out DIR' writes")
    _fit(folder, parts)
    return run_of(
        folder.resolve().name,
        [row for part in parts for row in part.rows],
        [case for part in parts for case in part.cases],
        [part.about for part in parts],
        [*_absent(parts), *(note for part in parts for note in part.notes)],
    )


def run_of(
    name: str,
    rows: Sequence[RunRow],
    cases: Sequence[CaseRecord],
    meta: Sequence[About] = (),
    notes: Sequence[str] = (),
) -> Run:
    """The frames of these rows and cases."""
    return Run(
        name, _frame(rows, RunRow), _frame(cases, CaseRecord), msgspec.to_builtins(list(meta)), list(notes)
    )


def read_part(files: Files) -> Part:
    """One shard; raises `UsageError` that names the file, and the line, at fault."""
    part = Part(files, read_about(files))
    part.cases = list(_lines(part, files.cases, CaseRecord))
    known = {case.case for case in part.cases}
    # Rows come before their case, so those of a case that did not end stand last.
    part.rows = list(_lines(part, files.rows, RunRow, lambda row: row.case in known))
    _whole(part)
    return part


def read_about(files: Files) -> About:
    """What `run.json` says; raises `UsageError` for another file under its name."""
    return decode(_bytes(files.about), About, f"'{files.about}'")


def _lines(part: Part, path: Path, kind: type[T], wanted: Callable[[T], bool] = bool) -> Iterator[T]:
    """The objects of a file; a last line that was cut off is left out of a run that was."""
    if part.about.finished is None and not path.exists():
        return
    *lines, torn = _bytes(path).split(b"\n")
    if torn and part.about.finished is not None:
        raise UsageError(f"'{path}' ends in the middle of a line, though the run came to its end: it was cut")
    if torn:
        part.notes.append(f"{path}: the last line was cut off, and is left out")
    found = [decode(line, kind, f"line {number} of '{path}'") for number, line in enumerate(lines, 1)]
    ended = [record for record in found if wanted(record)]
    part.bytes_of[path] = sum(len(line) + 1 for line in lines[: len(ended)])
    if len(ended) < len(found):
        part.notes.append(f"{path}: {len(found) - len(ended)} rows of a case that did not end are left out")
    yield from ended


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read '{path}', which a run has: {error.strerror}") from None


def _whole(part: Part) -> None:
    """Refuse a case that is there twice or lacks rows, and a finished run that lacks cases."""
    named = [case.case for case in part.cases]
    if len(named) > len(set(named)):
        twice = next(name for name in named if named.count(name) > 1)
        raise UsageError(f"'{part.files.cases}' has case {twice} more than once: it is no file of one run")
    rows = Counter(row.case for row in part.rows)
    for case in part.cases:
        if (seen := rows[case.case]) != case.rows:
            raise UsageError(
                f"'{part.files.rows}' has {seen} rows of case {case.case}, which has {case.rows}"
            )
    if part.about.finished is not None and len(named) != part.about.planned.cases:
        raise UsageError(
            f"'{part.files.cases}' has {len(named)} cases, and the run came to its end "
            f"with {part.about.planned.cases}: it was cut"
        )


def _fit(folder: Path, parts: Sequence[Part]) -> None:
    """Refuse shards of different runs."""
    kinds = {(part.about.plan, part.files.shard.count if part.files.shard else 1) for part in parts}
    if len(kinds) > 1:
        names = ", ".join(part.files.about.name for part in parts)
        raise UsageError(f"'{folder}' holds parts of different runs: {names}")


def _absent(parts: Sequence[Part]) -> list[str]:
    here = {part.files.shard.index for part in parts if part.files.shard}
    count = max((part.files.shard.count for part in parts if part.files.shard), default=0)
    return [f"shard {index}/{count} is not here" for index in range(1, count + 1) if index not in here]


def _frame(records: Sequence[Any], kind: type) -> pd.DataFrame:
    import pandas as pd  # processes that only write, or play, need none

    names = [one.name for one in msgspec.inspect.type_info(kind).fields]  # type: ignore[attr-defined]
    plain = msgspec.json.decode(msgspec.json.encode(list(records)))  # tuples become lists, as in the files
    return pd.DataFrame(plain, columns=names)
