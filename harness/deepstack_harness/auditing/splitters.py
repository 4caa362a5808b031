"""Judge a function that splits a payload over ranks: R9, rank by rank in one process."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

import msgspec

from deepstack_harness.auditing.argument_classes import WHERE
from deepstack_harness.auditing.judged_plan import MOST_ENDS
from deepstack_harness.auditing.source_worker import AuditedClass, SourceWorker
from deepstack_harness.auditing.standing import Standing, sum_up
from deepstack_harness.catalogue.matrix import plan_audit
from deepstack_harness.catalogue.reach import UNKNOWN
from deepstack_harness.contract.arm_spec import ArmSpec
from deepstack_harness.contract.buffer_ref import BufferRef
from deepstack_harness.contract.case import HIDDEN_ALONE, LEVELS_ALONE, Case, PlannedCase
from deepstack_harness.contract.observation import Observation, Raised, StepFacts
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.trace import Trace
from deepstack_harness.contract.verdicts import BROKEN
from deepstack_harness.oracles.judged_case import JudgedCase, judge_case, unjudged_case
from deepstack_harness.play.case_worker import WORK, kind_of
from deepstack_harness.sources.source import buffer_of
from deepstack_harness.workers.outcomes import WorkerEnd, value_of

STEPS = (
    # All tokens visual; images across the edges of ranks; ranks without a visual token; a step that is
    # padded to a multiple of the ranks; a step of text after a visual one.
    (16, "set 16"),
    (16, "set 16 spans=1-6+7-11"),
    (16, "set 16 spans=0-3"),
    (9, "set 9 spans=2-9"),
    (8, "set 8 spans=5-7; forward 8; set 0"),
)
"""The tokens of the last step, and what comes before it."""
RANKS = (2, 4, 8)


def judge_splitter(found: AuditedClass, worker: SourceWorker, known: Mapping[Rule, str] | None) -> Standing:
    """Judge a splitter by R9; how an engine comes to a fault is unknown, since no runner was read."""
    cases = list(_judged(found, worker))
    label = worker.source.label
    standing = sum_up(cases, label, found.model_class, known, rules=(Rule.R9,))
    rows = (replace(row, reach=UNKNOWN) if row.verdict in BROKEN else row for row in standing.rows)
    return replace(standing, rows=tuple(rows))


def plan_splits(buffer: BufferRef) -> list[PlannedCase]:
    """Plan every step for each number of ranks, padded to a multiple of them."""
    return [
        replace(planned, case=replace(planned.case, arm=ArmSpec(ranks=ranks)))
        for tokens, before in STEPS
        for ranks in RANKS
        for planned in plan_audit(WHERE, buffer, [_trace(before, -(-tokens // ranks) * ranks)])
    ]


def _trace(before: str, padded: int) -> Trace:
    return Trace.parse(f"cap 64: {before}; forward {padded}")


def _judged(found: AuditedClass, worker: SourceWorker) -> Iterator[JudgedCase]:
    before = worker.worker.ends
    for planned in plan_splits(buffer_of(worker.source, found.model_class)):
        if worker.worker.ends - before >= MOST_ENDS:
            yield unjudged_case(planned, f"not played: other cases ended {MOST_ENDS} processes")
            continue
        case = msgspec.to_builtins(planned.case)
        result = worker.call(f"{WORK}:split", text=worker.text, model_class=found.model_class, case=case)
        if isinstance(result, WorkerEnd):
            seen = _ended(planned.case, result)
        else:
            seen = msgspec.convert(value_of(result, f"the parts of {found.model_class}"), Observation)
        yield judge_case(planned, seen, (Rule.R9,))


def _ended(case: Case, end: WorkerEnd) -> Observation:
    """Return the observation of a case whose last step ended the process."""
    *before, last = (StepFacts(str(step), case.trace.capacity) for step in case.trace)
    raised = Raised(kind_of(end), end.reason, "decoder", "", ends=True)
    steps = (*before, replace(last, raised=raised))
    return Observation(case.dtype, case.device, LEVELS_ALONE, HIDDEN_ALONE, "", steps)
