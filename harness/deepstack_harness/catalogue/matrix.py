"""Cases to run: incidents, audits and a user's own questions as plans, cheap backends first.  No torch."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from deepstack_harness.catalogue.incidents import Incident, Run
from deepstack_harness.contract.arm_spec import (
    EAGER,
    ArmSpec,
    Backend,
    Capture,
    GuardPolicy,
    PayloadPolicy,
    ShapePolicy,
)
from deepstack_harness.contract.case import Case, Compare, parse_subject
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.trace import RUNS_DECODER, Op, Trace

CONTROL_REVISION = "reference"
"""The revision of the controls, which do not depend on the buffer and are played once."""
_COST = [Backend.NONE, Backend.EAGER, Backend.AOT_EAGER, Backend.INDUCTOR]
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
    "cap 16: clear -1; set 9; get 9; get -1; clear -1; resize -1; get 9; get 0; clear 0; get 9",
    "cap 16: set 9; get 9; forward 16; set 3; forward 4; forward 9; get 16",
)

CAPTURE_TRACES = (
    # Faults that only graphs show: text after an image, growth between replays.
    "cap 16: capture 16; set 16; replay 16; replay 16",
    "cap 16: capture 16; capture 4; set 9; set 3; replay 4; set 9; replay 16",
    "cap 16: capture 16; set 9; replay 16; set 20; replay 16; replay 16; get 20",
)
CAPTURE_ARM = ArmSpec(capture=Capture.FULL)
CHECK_TRACES = (*AUDIT_TRACES, *CONTRACT_TRACES, *CAPTURE_TRACES)


@dataclass(frozen=True)
class Planned:
    """A case and the rules that it must break; None if no catalogue says so (a user's source or trace)."""

    case: Case
    must_break: frozenset[Rule] | None
    note: str = ""

    @property
    def is_control(self) -> bool:
        """True if the case is a control: a model without a payload, or with a zeroed one."""
        return self.case.arm.payload is not PayloadPolicy.BUFFER


@dataclass(frozen=True)
class Where:
    """Settings that a whole run shares: names of family, dtype and device, and the seed."""

    family: str
    dtype: str = "float32"
    device: str = "cpu"
    seed: int = 0


def graph_budget(trace: Trace, arm: ArmSpec) -> int:
    """Return the number of graphs that a correct buffer needs over a trace, the same for every family.

    Without guards, or with those only that refuse a recompile, one graph serves every size.  With guards,
    torch compiles 0 and 1 tokens separately (its 0/1 specialisation), and with static shapes every size.
    Unbacked sizes are never specialised, but the strides of an empty tensor are, so that 0 tokens take
    one more graph.  If only tensor guards are kept, a graph for all sizes serves 0 and 1 too once it is
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


def plan_incident(incident: Incident, where: Where) -> list[Planned]:
    """Plan the runs of an incident over its revisions, with controls, cheap backends first."""
    known = plan_runs(incident.runs_of(where.family), incident.revisions, where)
    return sorted([*_controls(incident, where), *known], key=_cost)


def plan_runs(runs: Iterable[Run], revisions: Sequence[str], where: Where) -> list[Planned]:
    """Plan runs over the revisions they name, or else over `revisions`, with the rules that each breaks."""
    return [
        Planned(
            _case(replace(where, dtype=run.dtype or where.dtype), subject, Trace.parse(run.trace), arm),
            frozenset(run.broken.get(subject, ())),
            run.note,
        )
        for run in runs
        for arm in map(ArmSpec.parse, run.arms)
        for subject in run.revisions or revisions
    ]


def daily(incident: Incident, case: Case) -> bool:
    """Return whether CI plays a case of an incident every day.

    A cold compile takes 1 s to 6 s, so that CI cannot play all.  Compiled cases are daily on the
    incident's first family, and with Inductor on its first faulty and its last fixed revision.
    """
    if case.arm.backend is Backend.INDUCTOR and case.subject not in (incident.faulty[0], incident.fixed[-1]):
        return False
    return case.arm.backend is Backend.NONE or case.family == incident.families[0]


def plan_source(incident: Incident, where: Where, label: str, model_class: str) -> list[Planned]:
    """Plan the runs of an incident on one upstream class, without expectations."""
    runs = [
        Planned(_of_source(_case(where, label, Trace.parse(run.trace), arm), model_class), None, run.note)
        for run in incident.runs_of(where.family)
        if run.about_sources
        for arm in map(ArmSpec.parse, run.arms)
    ]
    return sorted([*_controls(incident, where), *runs], key=_cost)


def plan_audit(
    where: Where, label: str, model_class: str, traces: Iterable[Trace] | None = None
) -> list[Planned]:
    """Plan traces on one class of a source without a decoder; by default the audit traces."""
    chosen = map(Trace.parse, AUDIT_TRACES) if traces is None else traces
    cases = (replace(_case(where, label, trace, EAGER), compare=Compare.NOTHING) for trace in chosen)
    return [Planned(_of_source(case, model_class), None) for case in cases]


def plan_check(where: Where, label: str, texts: Iterable[str] = CHECK_TRACES) -> list[Planned]:
    """Plan traces on a user's own class, uncompiled; by default those of the whole contract."""
    return [
        Planned(_case(where, label, trace, _uncompiled(trace)), None) for trace in map(Trace.parse, texts)
    ]


def _uncompiled(trace: Trace) -> ArmSpec:
    return CAPTURE_ARM if any(step.op in {Op.CAPTURE, Op.REPLAY} for step in trace) else EAGER


def plan_workload(
    incident: Incident, where: Where, trace: Trace, source: tuple[str, str] | None = None
) -> list[Planned]:
    """Plan a workload over all revisions with guards dropped, and over the faulty ones with guards kept.

    `source` is the label and the model class of an upstream class to run instead.  Traffic that
    alternates compiles a graph for each structure it has seen, so that graphs are counted and not judged.
    """
    dropped, kept = ArmSpec.parse("eager/drop_all"), ArmSpec.parse("eager/stock")
    if source is not None:
        planned = [_of_source(_case(where, source[0], trace, arm), source[1]) for arm in (dropped, kept)]
    else:
        pairs = [*((one, dropped) for one in incident.revisions), *((one, kept) for one in incident.faulty)]
        planned = [_case(where, revision, trace, arm) for revision, arm in pairs]
    return [Planned(replace(case, compare=Compare.EAGER), None) for case in planned]


def narrow(plan: Iterable[Planned], trace: Trace | None, arm: ArmSpec | None) -> list[Planned]:
    """Return the part of a plan with this arm, or the plan rebuilt on a user's own trace or arm.

    A case that the catalogue does not cover has no expectation.
    """
    plan = list(plan)
    covered = arm is None or any(planned.case.arm == arm for planned in plan)
    if trace is None and covered:
        return [planned for planned in plan if arm in (None, planned.case.arm) or planned.is_control]
    rebuilt = (
        _rebuilt(planned.case, trace or planned.case.trace, arm) for planned in plan if not planned.is_control
    )
    return list(dict.fromkeys(rebuilt))


def _rebuilt(case: Case, trace: Trace, arm: ArmSpec | None) -> Planned:
    arm = arm or case.arm
    return Planned(replace(case, trace=trace, arm=arm, graph_budget=graph_budget(trace, arm)), None)


def _of_source(case: Case, model_class: str) -> Case:
    return replace(case, source=case.revision, model_class=model_class)


def _cost(planned: Planned) -> int:
    return _COST.index(planned.case.arm.backend)


def _controls(incident: Incident, where: Where) -> Iterator[Planned]:
    trace = Trace.parse(incident.runs_of(where.family)[0].trace)
    if any(step.op in RUNS_DECODER for step in trace):
        for payload in (PayloadPolicy.NONE, PayloadPolicy.ZERO):
            yield Planned(_case(where, CONTROL_REVISION, trace, ArmSpec(payload=payload)), frozenset())


def _case(where: Where, subject: str, trace: Trace, arm: ArmSpec) -> Case:
    revision, caller = parse_subject(subject)
    return Case(
        family=where.family, revision=revision, trace=trace, arm=arm, dtype=where.dtype,
        device=where.device, seed=where.seed, graph_budget=graph_budget(trace, arm), caller=caller,
    )  # fmt: skip
