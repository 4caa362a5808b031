"""What is written down of a case that was played and judged: figures, the diagnosis, a script."""

from collections.abc import Sequence
from dataclasses import replace

from deepstack_harness.catalogue.incidents import catalogue
from deepstack_harness.contract.case import ENGINE, Distances, StepFacts
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.trace import Op
from deepstack_harness.errors import UsageError
from deepstack_harness.oracles.diagnosis import diagnose
from deepstack_harness.play.cells import Cell
from deepstack_harness.results.records import RunRow, StepRecord
from deepstack_harness.runs.task_result import Done, Ending, Seen, record
from deepstack_harness.runs.tasks import Task
from deepstack_harness.scripts.findings import Whose, render_finding
from deepstack_harness.scripts.standalone import render_script

_OF_BUFFERS = frozenset({Rule.R1, Rule.R2, Rule.R3, Rule.R4, Rule.R5, Rule.R6, Rule.R8})
"""Rules that a buffer alone breaks, so that a script without a decoder shows it."""


def played(task: Task, cell: Cell, seconds: float) -> Done:
    """Of a case that was played and judged; one whose ranks died was not played."""
    seen, graphs = cell.observation, cell.observation.graphs
    rows = [RunRow.judged(task.planned, said, seen.torch, task.incident, task.id) for said in cell.judgements]
    found = Seen(
        distances=_worst(seen.steps),
        graphs=graphs.graphs if graphs else None,
        recompiles=graphs.recompiles if graphs else None,
        steps=tuple(map(_step, seen.steps)),
        diagnosis=diagnose(task.case, seen) if cell.broken and seen.steps else None,
        script=_script(task, cell),
        output="" if seen.steps else seen.error or "",
    )
    return Done(tuple(rows), record(task, _ending(cell), seconds, rows, found))


def _ending(cell: Cell) -> Ending:
    graphs = cell.observation.graphs
    if not cell.observation.steps:
        return Ending.CRASHED  # its ranks did
    return Ending.RECOMPILE_LIMIT if graphs and graphs.limit_hit else Ending.PLAYED


def _worst(steps: Sequence[StepFacts]) -> Distances | None:
    """The distance to eager of the step that is furthest from it, the rest of the furthest with a payload.

    A step without one may be the one that is wrong, when it reads what was cleared; it
    knows nothing of the effect that a payload has.
    """
    measured = [facts.distances for facts in steps if facts.distances is not None]
    with_payload = [found for found in measured if found.effect > 0]
    shown = max(with_payload or measured, key=_eager, default=None)
    return replace(shown, eager=max(map(_eager, measured))) if shown else None


def _eager(found: Distances) -> float:
    return found.eager


def _step(facts: StepFacts) -> StepRecord:
    asked = _asked(facts.step)
    said = facts.raised
    raised = f"{said.call} raised {said.type}: {said.message}" if said else None
    return StepRecord(facts.step, asked, facts.attended, facts.graphs, raised)


def _asked(text: str) -> int | None:
    """P of a step that reads: a set and a reload ask for nothing."""
    op, *rest = text.split()
    return int(rest[0]) if rest and op != Op.SET else None


def _script(task: Task, cell: Cell) -> str | None:
    """A program that shows the fault: the incident's, where that is about this very subject and arm."""
    if not cell.broken:
        return None
    case = task.case
    incident = next((each for each in catalogue() if each.id == task.incident), None)
    shown = incident.script if incident else None
    try:
        if incident and shown and (shown.subject, shown.arm) == (case.subject, case.arm.name):
            return render_script(incident, case.family)
        return _of_buffer(task, cell)
    except UsageError:
        return None


def _of_buffer(task: Task, cell: Cell) -> str | None:
    """The trace on the buffer alone, where that breaks a rule of its own."""
    broken = [said for said in cell.judgements if said.rule in cell.broken and said.rule in _OF_BUFFERS]
    if not broken or task.case.caller != ENGINE:
        return None
    return render_finding(task.case.trace, broken[0].rule, broken[0].detail, Whose(task.case.revision))
