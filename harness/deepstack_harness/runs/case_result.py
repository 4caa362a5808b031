"""The stored result of a case: its rows, its record, and a program that shows its fault with only torch."""

import hashlib
from dataclasses import dataclass, replace

from deepstack_harness.catalogue.incidents import catalogue
from deepstack_harness.catalogue.scripts import ProgramBuffer, render_finding, render_script
from deepstack_harness.contract.case import ENGINE, BufferKind, PlannedCase
from deepstack_harness.contract.observation import StepFacts
from deepstack_harness.contract.oracles.judge import JudgedCase, unjudged_case
from deepstack_harness.contract.oracles.outputs import case_distances, diagnose
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.trace import Op
from deepstack_harness.contract.verdicts import Row
from deepstack_harness.errors import UsageError
from deepstack_harness.runs.records import CaseEnding, CaseRecord, StepRecord

_BUFFER_RULES = frozenset(
    {Rule.STRUCTURE, Rule.BOUNDARY, Rule.FRESHNESS, Rule.CAPACITY, Rule.CLEAR, Rule.ADDRESS, Rule.REJECTION}
)
"""Rules that a buffer breaks without a decoder, so that a script without one shows it."""


def script_of(judged_case: JudgedCase) -> str | None:
    """Return a program that shows the worst of the rules that a case broke; None where nobody wrote one.

    It is the incident's where that is about this very subject and arm. Else a rule that needs a decoder, such
    as R0, is shown by the incident's program, on the incident's own subject and arm, which it names; a rule
    of the buffer by one that plays the trace on the buffer without a decoder.
    """
    case = judged_case.case
    shown = next(judgement for judgement in judged_case.judgements if judgement.rule in judged_case.broken)
    incident = next((entry for entry in catalogue() if entry.id == judged_case.planned.incident), None)
    script = incident.script if incident else None
    try:
        if (
            incident
            and script
            and (
                (script.subject, script.arm) == (case.subject, case.arm.name)
                or (shown.rule not in _BUFFER_RULES and shown.rule in incident.rules)
            )
        ):
            return render_script(incident, case.family)
        # A program can import a class that is neither of a source nor inside a function.
        importable = case.buffer.kind is not BufferKind.SOURCE and "<locals>" not in case.buffer.name
        if shown.rule not in _BUFFER_RULES or case.caller != ENGINE or not importable:
            return None
        return render_finding(case.trace, shown.rule, shown.detail, ProgramBuffer(case.buffer.name))
    except UsageError:
        return None


_LONGEST_LINE = 300
"""Characters of a sentence in a record."""


@dataclass(frozen=True)
class CaseResult:
    """Everything that is stored of one case."""

    rows: tuple[Row[Rule], ...]
    case: CaseRecord


def result_of(judged_case: JudgedCase, seconds: float, ending: CaseEnding | None = None) -> CaseResult:
    """Return the result of a case that was played and judged; a case whose ranks died has CRASHED.

    `ending` is that of a case whose process did not play it to its end.
    """
    seen = judged_case.observation
    if ending is None:
        at_limit = seen.graphs is not None and seen.graphs.limit_hit
        ending = CaseEnding.RECOMPILE_LIMIT if at_limit else CaseEnding.PLAYED
        ending = ending if seen.steps else CaseEnding.CRASHED  # its ranks did
    return _result(
        judged_case,
        ending,
        seconds,
        diagnosis=diagnose(judged_case.case, seen) if judged_case.broken and seen.steps else None,
        script=script_of(judged_case) if judged_case.broken else None,
        output="" if seen.steps else seen.error or "",
    )


def lost_result(
    planned: PlannedCase, ending: CaseEnding, why: str, output: str, seconds: float
) -> CaseResult:
    """Return the result of a case that did not come to its end.

    Every rule is ERROR, with the last line of `output`, which the process printed.
    """
    last = output.strip().rpartition("\n")[2][-_LONGEST_LINE:]
    detail = f"{ending}: {why}; printed at the end: {last}" if last else f"{ending}: {why}"
    return _result(unjudged_case(planned, detail), ending, seconds, output=output)


def result_in_test(result: CaseResult, node_id: str, number: int, where: str | None = None) -> CaseResult:
    """Return the result with the id of a test: tests may judge the same case many times.

    `node_id` is pytest's, `number` counts the results of one test from 1, `where` is the test's FILE:LINE.
    """
    place = f"{node_id} #{number}"
    own = hashlib.sha256(f"{place}|{result.case.case}".encode()).hexdigest()[:12]
    rows = tuple(replace(row, case=own, node_id=node_id, where=where) for row in result.rows)
    return CaseResult(rows, replace(result.case, case=own, note=place))


def _result(
    judged_case: JudgedCase,
    ending: CaseEnding,
    seconds: float,
    *,
    diagnosis: str | None = None,
    script: str | None = None,
    output: str = "",
) -> CaseResult:
    planned, case, seen = judged_case.planned, judged_case.case, judged_case.observation
    rows, graphs = tuple(judged_case.rows_against_plan()), seen.graphs
    record = CaseRecord(
        case=planned.id, group=planned.group, incident=planned.incident, ending=ending,
        seconds=round(seconds, 4), family=case.family, subject=case.subject, buffer=case.buffer,
        trace=str(case.trace), arm=case.arm.name, device=case.device, dtype=case.dtype,
        expected=planned.wanted, distances=case_distances(case, seen),
        graphs=graphs.graphs if graphs else None, recompiles=graphs.recompiles if graphs else None,
        graph_budget=case.graph_budget, steps=tuple(map(_step_record, seen.steps)), diagnosis=diagnosis,
        script=script, note=planned.note, output=output, rows=len(rows),
        breaks=graphs.breaks if graphs else None, code=graphs.code if graphs else None,
    )  # fmt: skip
    return CaseResult(rows, record)


def _step_record(facts: StepFacts) -> StepRecord:
    error = facts.raised
    raised = f"{error.call} raised {error.type}: {error.message}" if error else None
    op, *rest = facts.step.split()
    rows = int(rest[0]) if rest and op != Op.SET else None
    return StepRecord(facts.step, rows, facts.attended, facts.graphs, raised)
