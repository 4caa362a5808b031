"""Load a run's folder, and a folder of earlier runs, for reports; nothing is written."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from deepstack_harness.clean_text import clean, shortened
from deepstack_harness.errors import UsageError
from deepstack_harness.nightly.night import Ended
from deepstack_harness.reporting.run_data import Changes, RunData
from deepstack_harness.results.compare import ChangeKind, compare
from deepstack_harness.results.history import history_in
from deepstack_harness.results.read import StoredRun, read_rows, read_stored
from deepstack_harness.results.records import CaseRecord


def load_run(folder: Path, history: Path | None = None) -> RunData:
    """Load the run in `folder`, finished or killed, beside the runs in the folders of `history`.

    Raises `UsageError` for a folder without a run, and for a file that does not read.
    """
    stored = read_stored(folder)
    stages = _stages(folder / "nightly.json")
    notes = [*stored.notes, *(_told(stage) for stage in stages or () if not stage.held)]
    earlier = None if history is None else _earlier(stored, history, notes)
    before = [run for run in earlier or () if run.started < stored.started]
    audit = folder / "audit.jsonl"
    return replace(
        _run_data(stored),
        kernels=_lines(folder / "kernels.jsonl"),
        audit=clean(read_rows(audit)) if audit.exists() else None,
        fuzz=_names(folder / "fuzz"),
        stages=stages,
        notes=clean(tuple(notes)),
        history=None if earlier is None else tuple(map(_run_data, earlier)),
        changes=_changes(before[-1], stored) if before else None,
    )


def _changes(before: StoredRun, now: StoredRun) -> Changes:
    kinds = (ChangeKind.REGRESSION, ChangeKind.IMPROVEMENT, ChangeKind.MISSING, ChangeKind.NEW)
    found = sorted(compare(before, now), key=lambda change: kinds.index(change.kind))
    return Changes(clean(before.name), clean(tuple(found)))


def _run_data(stored: StoredRun) -> RunData:
    """Return a stored run with all its text cleaned, without the other files of its folder."""
    # Workers end in any order: the same cases are to give the same report.
    cases = {case.case: case for case in sorted(clean(stored.cases), key=_place)}
    order = {name: place for place, name in enumerate(cases)}
    rows = tuple(sorted(clean(stored.rows), key=lambda row: order[row.case]))
    return RunData(clean(stored.name), clean(stored.abouts), rows, cases, clean(stored.started))


def _place(case: CaseRecord) -> tuple[str, ...]:
    return case.family, case.arm, case.device, case.subject, case.dtype, case.trace, case.case


def _stages(path: Path) -> tuple[Ended, ...] | None:
    """Return the stages of the night that this run is part of; None where it is part of none."""
    if not path.exists():
        return None
    try:
        return tuple(clean(msgspec.json.decode(path.read_bytes(), type=list[Ended])))
    except msgspec.MsgspecError as error:
        raise UsageError(f"{path} is not what a night writes: {error}") from None


def _told(stage: Ended) -> str:
    return f"stage {stage.stage} of the night: {stage.outcome}; {shortened(stage.why, 300)}"


def _earlier(stored: StoredRun, history: Path, notes: list[str]) -> list[StoredRun]:
    """Return the other runs in a folder, oldest first; those that do not read are named in `notes`."""
    if not history.is_dir():
        raise UsageError(f"'{history}' is not a folder; --history takes a folder that holds folders of runs")
    runs, left_out = history_in(history)
    notes += left_out
    return [run for run in runs if run.started != stored.started]


def _lines(path: Path) -> tuple[Mapping[str, Any], ...] | None:
    """Decode JSON lines; None without a file.  A torn last line, as that of a killed run, is ignored."""
    if not path.exists():
        return None
    lines = path.read_bytes().splitlines(keepends=True)
    whole = [line for line in lines if line.strip() and (line.endswith(b"\n") or line != lines[-1])]
    try:
        return tuple(clean(msgspec.json.decode(line, type=dict[str, Any])) for line in whole)
    except msgspec.MsgspecError as error:
        raise UsageError(f"{path} is not a file of JSON lines: {error}") from None


def _names(folder: Path) -> tuple[str, ...] | None:
    if not folder.is_dir():
        return None
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return tuple(clean(path.relative_to(folder).as_posix()) for path in files)
