"""Reads a run's folder, and a folder of earlier runs, for reports; writes nothing."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pandas as pd

from deepstack_harness.errors import UsageError
from deepstack_harness.nightly.night import Ended
from deepstack_harness.reporting.run_data import Judged, RunData
from deepstack_harness.reporting.sanitize import clean, shortened
from deepstack_harness.results import read_run
from deepstack_harness.results.files import found_in
from deepstack_harness.results.records import CaseRecord

T = TypeVar("T")


def load_run(folder: Path, history: Path | None = None) -> RunData:
    """The run in `folder`, whether it finished or was killed, beside the runs in the folders of `history`.

    Raises `UsageError` for what is no run, and for a file that does not read.
    """
    found = read_run(folder)
    ended = _typed(_records(found.cases), CaseRecord, folder / "cases.jsonl")
    # Workers end in any order: the same cases are to give the same report.
    cases = {one.case: one for one in sorted(ended, key=_place)}
    order = {name: place for place, name in enumerate(cases)}
    rows = sorted(
        _typed(_records(found.rows), Judged, folder / "rows.jsonl"), key=lambda row: order[row.case]
    )
    audit = _lines(folder / "audit.jsonl")
    stages = _stages(folder / "nightly.json")
    notes = [*found.notes, *(_told(one) for one in stages or () if not one.held)]
    earlier = None if history is None else _history(folder, history, notes)
    return RunData(
        name=str(clean(found.name)),
        about=tuple(map(_cleaned, found.meta)),
        rows=tuple(sorted(rows, key=lambda row: order[row.case])),
        cases=cases,
        kernels=_lines(folder / "kernels.jsonl"),
        audit=None if audit is None else tuple(_typed(audit, Judged, folder / "audit.jsonl")),
        fuzz=_names(folder / "fuzz"),
        stages=stages,
        notes=tuple(str(clean(note)) for note in notes),
        history=earlier,
    )


def _place(case: CaseRecord) -> tuple[str, ...]:
    return case.family, case.arm, case.device, case.subject, case.dtype, case.trace, case.case


def _stages(path: Path) -> tuple[Ended, ...] | None:
    """Of the night that this run is part of; None where it is part of none."""
    if not path.exists():
        return None
    try:
        ended = msgspec.json.decode(path.read_bytes(), type=list[Ended])
    except msgspec.MsgspecError as error:
        raise UsageError(f"{path} is not what a night writes: {error}") from None
    return tuple(replace(one, stage=str(clean(one.stage)), detail=str(clean(one.detail))) for one in ended)


def _told(one: Ended) -> str:
    return f"stage {one.stage} of the night: {one.outcome}; {shortened(one.why, 300)}"


def _history(folder: Path, history: Path, notes: list[str]) -> tuple[RunData, ...]:
    """Every other run of a folder, by their start; one that does not read is named in `notes`."""
    if not history.is_dir():
        raise UsageError(f"'{history}' is no folder; --history takes a folder that holds folders of runs")
    found = []
    for each in sorted(path for path in history.iterdir() if path.is_dir()):
        if each.resolve() == folder.resolve() or not any(found_in(each)):
            continue
        try:
            found.append(load_run(each))
        except UsageError as error:
            notes.append(f"not in the history: {error}")
    return tuple(sorted(found, key=lambda run: run.started))


def _records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """A frame's rows, with None for what is missing."""
    whole = frame.astype(object)
    return [_cleaned(one) for one in whole.where(whole.notna(), None).to_dict("records")]


def _typed(records: Iterable[Mapping[str, Any]], kind: type[T], path: Path) -> list[T]:
    try:
        # Not strict: a column of counts of which some are missing comes as floats.
        return [msgspec.convert(record, kind, strict=False) for record in records]
    except msgspec.ValidationError as error:
        raise UsageError(f"{path} does not hold what a run writes: {error}") from None


def _lines(path: Path) -> tuple[dict[str, Any], ...] | None:
    """A file of JSON lines; None without one.  Its last line may be torn, as that of a killed run is."""
    if not path.exists():
        return None
    lines = path.read_bytes().splitlines(keepends=True)
    whole = [line for line in lines if line.strip() and (line.endswith(b"\n") or line != lines[-1])]
    try:
        return tuple(_cleaned(msgspec.json.decode(line, type=dict[str, Any])) for line in whole)
    except msgspec.MsgspecError as error:
        raise UsageError(f"{path} is no file of JSON lines: {error}") from None


def _names(folder: Path) -> tuple[str, ...] | None:
    if not folder.is_dir():
        return None
    return tuple(
        str(clean(path.relative_to(folder).as_posix()))
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    )


def _cleaned(record: Mapping[str, Any]) -> dict[str, Any]:
    return {str(key): clean(value) for key, value in record.items()}
