"""What was judged in a test, as a run writes it down (`deepstack_harness.results`), in plain dicts."""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import msgspec

from deepstack_harness.contract.case import Case, Judgement, Observation
from deepstack_harness.play.cells import Cell
from deepstack_harness.runs.case_record import played
from deepstack_harness.runs.tasks import Task


def record(
    case: Case, observation: Observation, judgements: Sequence[Judgement], place: str
) -> dict[str, Any]:
    """`{"rows": [..], "case": {..}}` of a case; `place` (test, number) tells it from others like it."""
    task = Task(case, None, note=place)
    done = played(task, Cell(task.planned, observation, tuple(judgements)), 0.0)
    number = hashlib.sha256(f"{place}|{task.id}".encode()).hexdigest()[:12]
    rows = tuple(replace(row, case=number) for row in done.rows)
    return cast(
        dict[str, Any],
        msgspec.to_builtins(replace(done, rows=rows, case=replace(done.case, case=number))),
    )
