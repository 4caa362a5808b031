"""Results of cases: rows and a record, as a run or a test stores them."""

import hashlib
from dataclasses import dataclass, replace

from deepstack_harness.contract.case import PlannedCase
from deepstack_harness.contract.observation import Observation, StepFacts
from deepstack_harness.contract.row import Row
from deepstack_harness.contract.trace import Op
from deepstack_harness.oracles.diagnosis import diagnose
from deepstack_harness.oracles.distances import case_distances
from deepstack_harness.oracles.judged_case import JudgedCase, unjudged_case
from deepstack_harness.results.case_script import script_of
from deepstack_harness.results.records import CaseEnding, CaseRecord, StepRecord

_SHORT = 300


@dataclass(frozen=True)
class CaseResult:
    """Everything that is stored of one case."""

    rows: tuple[Row, ...]
    case: CaseRecord


def result_of(judged: JudgedCase, seconds: float, ending: CaseEnding | None = None) -> CaseResult:
    """Return the result of a case that was played and judged; a case whose ranks died has CRASHED.

    `ending` is that of a case whose process did not play it to its end.
    """
    seen = judged.observation
    return _result(
        judged,
        ending or _ending(seen),
        seconds,
        diagnosis=diagnose(judged.case, seen) if judged.broken and seen.steps else None,
        script=script_of(judged) if judged.broken else None,
        output="" if seen.steps else seen.error or "",
    )


def lost_result(
    planned: PlannedCase, ending: CaseEnding, why: str, output: str, seconds: float
) -> CaseResult:
    """Return the result of a case that did not come to its end.

    Every rule is ERROR, with the last line of `output`, which the process printed.
    """
    last = output.strip().rpartition("\n")[2][-_SHORT:]
    detail = f"{ending}: {why}; printed at the end: {last}" if last else f"{ending}: {why}"
    return _result(unjudged_case(planned, detail), ending, seconds, output=output)


def in_test(result: CaseResult, node_id: str, number: int, where: str | None = None) -> CaseResult:
    """Return the result with the id of a test: tests may judge the same case many times.

    `node_id` is pytest's, `number` counts the results of one test from 1, `where` is the test's FILE:LINE.
    """
    place = f"{node_id} #{number}"
    own = hashlib.sha256(f"{place}|{result.case.case}".encode()).hexdigest()[:12]
    rows = tuple(replace(row, case=own, node_id=node_id, where=where) for row in result.rows)
    return CaseResult(rows, replace(result.case, case=own, note=place))


def _result(
    judged: JudgedCase,
    ending: CaseEnding,
    seconds: float,
    *,
    diagnosis: str | None = None,
    script: str | None = None,
    output: str = "",
) -> CaseResult:
    planned, case, seen = judged.planned, judged.case, judged.observation
    rows, graphs = tuple(judged.rows_beside_plan()), seen.graphs
    record = CaseRecord(
        case=planned.id, group=planned.group, incident=planned.incident, ending=ending,
        seconds=round(seconds, 4), family=case.family, subject=case.subject, buffer=case.buffer,
        trace=str(case.trace), arm=case.arm.name, device=case.device, dtype=case.dtype,
        expected=planned.wanted, distances=case_distances(case, seen),
        graphs=graphs.graphs if graphs else None, recompiles=graphs.recompiles if graphs else None,
        graph_budget=case.graph_budget, steps=tuple(map(_step, seen.steps)), diagnosis=diagnosis,
        script=script, note=planned.note, output=output, rows=len(rows),
    )  # fmt: skip
    return CaseResult(rows, record)


def _ending(seen: Observation) -> CaseEnding:
    if not seen.steps:
        return CaseEnding.CRASHED  # its ranks did
    at_limit = seen.graphs is not None and seen.graphs.limit_hit
    return CaseEnding.RECOMPILE_LIMIT if at_limit else CaseEnding.PLAYED


def _step(facts: StepFacts) -> StepRecord:
    said = facts.raised
    raised = f"{said.call} raised {said.type}: {said.message}" if said else None
    return StepRecord(facts.step, _asked(facts.step), facts.attended, facts.graphs, raised)


def _asked(text: str) -> int | None:
    """Return P of a step that reads: a set and a reload ask for nothing."""
    op, *rest = text.split()
    return int(rest[0]) if rest and op != Op.SET else None
