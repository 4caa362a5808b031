"""A task that came to an end: its rows and its case, as they are written down.  No torch."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from deepstack_harness.catalogue.registry import ORACLES
from deepstack_harness.contract.case import Distances
from deepstack_harness.contract.rules import Rule
from deepstack_harness.oracles.base import error
from deepstack_harness.results.records import CaseRecord, RunRow, StepRecord
from deepstack_harness.runs.tasks import Task

_SHORT = 300


class Ending(StrEnum):
    """How a task ended; after the last four its process is not used again."""

    PLAYED = "played"
    RECOMPILE_LIMIT = "recompile limit"
    RAISED = "raised"
    CRASHED = "crashed"
    TIMED_OUT = "timed out"
    OUT_OF_MEMORY = "out of memory"

    @property
    def is_whole(self) -> bool:
        """Whether it came to the end of its trace, and the process may go on."""
        return self in {Ending.PLAYED, Ending.RECOMPILE_LIMIT}


@dataclass(frozen=True)
class Done:
    """What is written down of one task."""

    rows: tuple[RunRow, ...]
    case: CaseRecord


@dataclass(frozen=True)
class Seen:
    """What was seen of a case, as `CaseRecord` has it; of one that was lost, what it printed."""

    distances: Distances | None = None
    graphs: int | None = None
    recompiles: int | None = None
    steps: tuple[StepRecord, ...] = ()
    diagnosis: str | None = None
    script: str | None = None
    output: str = ""


def lost(task: Task, ending: Ending, why: str, output: str, seconds: float) -> Done:
    """Of a case that did not come to its end: every rule is ERROR, with the end of what was printed."""
    last = output.strip().rpartition("\n")[2][-_SHORT:]
    detail = f"{ending}: {why}; printed at the end: {last}" if last else f"{ending}: {why}"
    rows = [
        RunRow.judged(task.planned, error(Rule(rule), detail), "", task.incident, task.id) for rule in ORACLES
    ]
    return Done(tuple(rows), record(task, ending, seconds, rows, Seen(output=output)))


def record(
    task: Task, ending: Ending, seconds: float, rows: Sequence[RunRow], seen: Seen | None = None
) -> CaseRecord:
    """What is written down of a task that ended so; `rows` are its judgements."""
    case = task.case
    return CaseRecord(
        case=task.id, group=task.group, incident=task.incident, ending=ending, seconds=round(seconds, 4),
        family=case.family, subject=case.subject, trace=str(case.trace), arm=case.arm.name,
        device=case.device, dtype=case.dtype, expected=task.must_break, graph_budget=case.graph_budget,
        note=task.note, rows=len(rows), **vars(seen or Seen()),
    )  # fmt: skip
