"""Cases to run: incidents, audits and a user's own questions as plans, cheap backends first. No torch."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import version

from deepstack_harness.catalogue.fitted_traces import fitted_traces
from deepstack_harness.catalogue.incidents import Incident, Run
from deepstack_harness.catalogue.pairs import daily_pairs
from deepstack_harness.catalogue.traces import INPUT_TRACES
from deepstack_harness.catalogue.versions import TorchReleases
from deepstack_harness.contract.arm import (
    EAGER,
    ArmSpec,
    Backend,
    Capture,
    GuardPolicy,
    PayloadPolicy,
    ShapePolicy,
)
from deepstack_harness.contract.case import BufferRef, Case, Compare, PlannedCase, parse_subject, registered
from deepstack_harness.contract.trace import RUNS_DECODER, Op, Trace

CONTROL_REVISION = "reference"
"""The revision of the controls, which do not depend on the buffer and are played once."""
_COST = [Backend.NONE, Backend.EAGER, Backend.AOT_EAGER, Backend.INDUCTOR, Backend.H200]
_GENERAL = {ShapePolicy.MARK_DYNAMIC: 2, ShapePolicy.MARK_UNBACKED: 1}
"""The number of tokens from which on one graph serves all sizes; each smaller size has its own."""


AUDIT_TRACES = (
    # S1..S10: the lifecycles on which released buffers were measured.
    "cap 16: get 4",
    "cap 16: set 9; get 16",
    "cap 16: set 9; get 16; clear 16; get 16",
    "cap 16: set 9; clear 5; get 9",
    "cap 16: set 9; clear 5; set 3; get 9",
    "cap 16: set 16; get 20",
    "cap 16: set 9; get 9; set 20; get 20",
    "cap 16: set 8; get 4; clear 4; get 4; clear 4",
    "cap 16: set 9; set 3; get 9",
    "cap 16: set 9; get 4",
    # Calls that must be refused.
    "cap 16: get -1",
    "cap 16: set 4 levels=4",
    "cap 16: set 4 hidden=1",
    "cap 16: set 9; get 9; set 20 hidden=7; get 9",
)

CONTRACT_TRACES = (
    # Together these test R1..R8: growth by set, get and resize, both ends of a clear, a shorter
    # payload after a longer one, refused calls between reads.
    "cap 16: profile 16; set 9; get 16; get 9; clear 16; get 16",
    "cap 16: set 9; clear 5; get 16; set 9; clear 0; get 9",
    "cap 16: set 9; get 9; set 3; get 9; get 3",
    "cap 16: set 16; get 16; get 20; get 20; set 24; get 24; get 30; clear 30; get 30",
    "cap 16: set 9; get 9; resize 20; get 9; resize 4; get 9; resize 12; get 9",
    "cap 16: set 9; get 9; set 4 hidden=1; get 9; set 4 levels=2; get 9; set 20 hidden=7; get 9",
    "cap 16: clear -1; set 9; get 9; get -1; clear -1; resize -1; get 9; get 0; get 9; clear 0; get 9",
    "cap 16: set 9; get 9; forward 16; set 3; forward 4; forward 9; get 16",
)

CAPTURE_TRACES = (
    # Faults that only graphs show: text after an image, growth between replays, live steps between replays
    # (a class that returned None at capture has no storage in a graph, and moves all the same).
    "cap 16: capture 16; set 16; replay 16; replay 16",
    "cap 16: capture 16; capture 4; set 9; set 3; replay 4; set 9; replay 16",
    "cap 16: capture 16; set 9; replay 16; set 20; replay 16; replay 16; get 20",
    "cap 16: capture 16; set 9; get 9; replay 16; set 20; get 9; clear 20; replay 16",
)
CAPTURE_ARM = ArmSpec(capture=Capture.FULL)


@cache
def check_traces() -> tuple[str, ...]:
    """Return the sample of traces that `check` and the fixture `deepstack_contract` play."""
    return (*AUDIT_TRACES, *CONTRACT_TRACES, *CAPTURE_TRACES, *INPUT_TRACES, *daily_pairs())


@cache
def methods_traces() -> tuple[Trace, ...]:
    """Return what the methods of a class of a source are played on: the sample of `check`, where it is short.

    It costs 0.7 s of a processor for each class. Long traces and pairs of inputs would cost 1.7 s more.
    """
    texts = (*AUDIT_TRACES, *CAPTURE_TRACES, *CONTRACT_TRACES, *INPUT_TRACES)
    traces = map(Trace.parse, texts)
    return tuple(
        trace for trace in traces if trace.capacity <= 1000 and sum(step.calls or 1 for step in trace) <= 100
    )


@dataclass(frozen=True)
class Where:
    """Settings that a whole run shares: names of family, dtype and device, and the seed."""

    family: str
    dtype: str = "float32"
    device: str = "cpu"
    seed: int = 0


def graph_budget(trace: Trace, arm: ArmSpec) -> int:
    """Return the number of graphs that a correct buffer needs over a trace, the same for every family.

    Without guards, or with those only that refuse a recompile, one graph serves every size. With guards,
    torch compiles 0 and 1 tokens separately (its 0/1 specialisation), and with static shapes every size.
    Unbacked sizes are never specialised, but the strides of an empty tensor are, so that 0 tokens take
    one more graph. If only tensor guards remain, a graph for all sizes serves 0 and 1 too once it is
    built.
    """
    if arm.guards in {GuardPolicy.DROP_ALL, GuardPolicy.SHAPE_ENV_ONLY}:
        return 1
    runs = RUNS_DECODER if arm.captured else RUNS_DECODER - {Op.CAPTURE, Op.REPLAY}
    sizes = [step.tokens // arm.ranks for step in trace if step.op in runs]
    general = _GENERAL.get(arm.shapes, max(sizes, default=0))
    kinds = list(dict.fromkeys(min(size, general) for size in sizes))
    if arm.guards is GuardPolicy.KEEP_TENSOR and arm.shapes in _GENERAL and general in kinds:
        kinds = kinds[: kinds.index(general) + 1]
    return max(1, len(kinds))


def plan_incident(incident: Incident, where: Where) -> list[PlannedCase]:
    """Plan the runs of an incident over its revisions, controls added, cheap backends first."""
    cases = plan_runs(_runs(incident, where), incident.revisions, where, incident.id)
    return sorted([*_controls(incident, where), *cases], key=_cost)


def _runs(incident: Incident, where: Where) -> list[Run]:
    """Return the runs of an incident in a place: neither a CPU nor every torch has all of them."""
    runs = (run for run in incident.runs_of(where.family) if where.device != "cpu" or not run.gpu)
    return [run for run in runs if not run.torch or TorchReleases(run.torch).has(version("torch"))]


def plan_runs(
    runs: Iterable[Run], revisions: Sequence[str], where: Where, incident: str | None = None
) -> list[PlannedCase]:
    """Plan runs over the revisions they name, or else over `revisions`, with what each must break."""
    return [
        PlannedCase(
            _case_of(replace(where, dtype=run.dtype or where.dtype), subject, Trace.parse(run.trace), arm),
            frozenset(run.broken.get(subject, ())),
            run.note,
            incident,
        )
        for run in runs
        for arm in map(ArmSpec.parse, run.arms)
        for subject in run.revisions or revisions
    ]


def daily(incident: Incident, case: Case) -> bool:
    """Return whether CI plays a case of an incident every day.

    A cold compile takes 1 s to 6 s, so that CI cannot play all. Compiled cases are daily on the
    incident's first family, and with Inductor on its first faulty and its last fixed revision; those of a
    `nightly` incident never are.
    """
    if incident.nightly and case.arm.compiled:
        return False
    if case.arm.backend is Backend.INDUCTOR and case.subject not in (incident.faulty[0], incident.fixed[-1]):
        return False
    return case.arm.backend is Backend.NONE or case.family == incident.families[0]


def plan_source(incident: Incident, where: Where, buffer: BufferRef) -> list[PlannedCase]:
    """Plan the runs of an incident on one class of a source; nothing is expected of it."""
    runs = [
        PlannedCase(
            _case(where, buffer, Trace.parse(run.trace), arm),
            None,
            # A note about one of our revisions is none about a source.
            "" if set(re.findall(r"\w+", run.note)) & set(incident.revisions) else run.note,
            incident.id,
        )
        for run in _runs(incident, where)
        if run.about_sources
        for arm in map(ArmSpec.parse, run.arms)
    ]
    return sorted([*_controls(incident, where), *runs], key=_cost)


def plan_audit(where: Where, buffer: BufferRef, traces: Iterable[Trace] | None = None) -> list[PlannedCase]:
    """Plan traces on one class of a source without a decoder; by default `methods_traces`, both regimes."""
    chosen = methods_traces() if traces is None else traces
    cases = (
        replace(_case(where, buffer, trace, _uncompiled(trace)), compare=Compare.NOTHING) for trace in chosen
    )
    return [PlannedCase(case, None) for case in cases]


def plan_compiled(where: Where, buffer: BufferRef, trace: Trace) -> list[PlannedCase]:
    """Plan a trace on one class of a source over its own text model, compiled with the engine's guards."""
    return [PlannedCase(_case(where, buffer, trace, ArmSpec.parse("eager/drop_all")), None)]


def plan_check(where: Where, buffer: BufferRef, texts: Iterable[str] | None = None) -> list[PlannedCase]:
    """Plan traces on one class of a user's own, without a decoder; by default the whole buffer contract."""
    traces: Iterable[Trace] = map(Trace.parse, check_traces() if texts is None else texts)
    if buffer.adapter is not None:
        traces = fitted_traces(traces, buffer.adapter)
        where = replace(where, dtype=buffer.adapter.dtype or where.dtype)
    cases = (_case(where, buffer, trace, _uncompiled(trace)) for trace in traces)
    return [PlannedCase(replace(case, compare=Compare.NOTHING), None) for case in cases]


def _uncompiled(trace: Trace) -> ArmSpec:
    return CAPTURE_ARM if any(step.op in {Op.CAPTURE, Op.REPLAY} for step in trace) else EAGER


def plan_workload(
    incident: Incident, where: Where, trace: Trace, source: BufferRef | None = None
) -> list[PlannedCase]:
    """Plan a workload over all revisions with the guards dropped, and over the faulty ones with all guards.

    `source` is a class of a source to run instead. Traffic that alternates compiles a graph for each
    structure it has seen, so graphs are counted, and not judged.
    """
    dropped, guarded = ArmSpec.parse("eager/drop_all"), ArmSpec.parse("eager/stock")
    if source is not None:
        cases = [_case(where, source, trace, arm) for arm in (dropped, guarded)]
    else:
        faulty = ((revision, guarded) for revision in incident.faulty)
        pairs = [*((revision, dropped) for revision in incident.revisions), *faulty]
        cases = [_case_of(where, revision, trace, arm) for revision, arm in pairs]
    return [PlannedCase(replace(case, compare=Compare.EAGER), None, incident=incident.id) for case in cases]


def narrow(plan: Iterable[PlannedCase], trace: Trace | None, arm: ArmSpec | None) -> list[PlannedCase]:
    """Return the part of a plan with this arm; with a trace or arm of a user's own, the plan rebuilt on it.

    A case that the catalogue does not cover has no expectation. Of an arm that is interpreted the cases
    are those of the same arm with Inductor, where there are any.
    """
    plan = list(plan)
    covered = arm is None or any(planned.case.arm == arm for planned in plan)
    if trace is None and covered:
        return [planned for planned in plan if arm in (None, planned.case.arm) or planned.is_control]
    if arm is not None and arm.interpreted and trace is None:
        alike = replace(arm, backend=Backend.INDUCTOR)
        plan = [planned for planned in plan if planned.case.arm == alike] or plan
    rebuilt: list[PlannedCase] = []
    for planned in plan:
        if not planned.is_control:
            played, under = trace or planned.case.trace, arm or planned.case.arm
            budget = graph_budget(played, under)
            case = replace(planned.case, trace=played, arm=under, graph_budget=budget)
            rebuilt.append(PlannedCase(case, None, incident=planned.incident))
    return list(dict.fromkeys(rebuilt))


def _cost(planned: PlannedCase) -> int:
    return _COST.index(planned.case.arm.backend)


def _controls(incident: Incident, where: Where) -> Iterator[PlannedCase]:
    trace = Trace.parse(incident.runs_of(where.family)[0].trace)
    if any(step.op in RUNS_DECODER for step in trace):
        for payload in (PayloadPolicy.NONE, PayloadPolicy.ZERO):
            case = _case(where, registered(CONTROL_REVISION), trace, ArmSpec(payload=payload))
            yield PlannedCase(case, frozenset(), incident=incident.id)


def _case_of(where: Where, subject: str, trace: Trace, arm: ArmSpec) -> Case:
    revision, caller = parse_subject(subject)
    return replace(_case(where, registered(revision), trace, arm), caller=caller)


def _case(where: Where, buffer: BufferRef, trace: Trace, arm: ArmSpec) -> Case:
    return Case(
        family=where.family, buffer=buffer, trace=trace, arm=arm, dtype=where.dtype, device=where.device,
        seed=where.seed, graph_budget=graph_budget(trace, arm),
    )  # fmt: skip
