"""What to run: incidents and questions turned into cases, cheap arms first.  No torch."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from harness.arm import EAGER, ArmSpec, Backend, GuardPolicy, PayloadPolicy
from harness.case import Case, Compare
from harness.incidents import Incident
from harness.rules import Rule
from harness.trace import RUNS_DECODER, Trace

CONTROL_REVISION = "reference"
"""The controls do not depend on the buffer; they are shown once, on this revision."""
_COST = [Backend.NONE, Backend.EAGER, Backend.AOT_EAGER, Backend.INDUCTOR]


AUDIT_TRACES = (
    # S1..S10: lifecycles that released buffers were measured on.
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
    # Together these put R1..R8 to the test: growth by set, get and resize, both ends of
    # a clear, a shorter payload after a longer one, refused calls between reads.
    "cap 16: profile 16; set 9; get 16; get 9; clear 16; get 16",
    "cap 16: set 9; clear 5; get 16; set 9; clear 0; get 9",
    "cap 16: set 9; get 9; set 3; get 9; get 3",
    "cap 16: set 16; get 16; get 20; get 20; set 24; get 24; get 30; clear 30; get 30",
    "cap 16: set 9; get 9; resize 20; get 9; resize 4; get 9; resize 12; get 9",
    "cap 16: set 9; get 9; set 4 hidden=1; get 9; set 4 levels=2; get 9; set 20 hidden=7; get 9",
    "cap 16: set 9; get 9; get -1; clear -1; resize -1; get 9; get 0; clear 0; get 9",
    "cap 16: set 9; get 9; forward 16; set 3; forward 4; forward 9; get 16",
)


@dataclass(frozen=True)
class Planned:
    """A case, and the rules it must break; None where no catalogue says so (a user's source or trace)."""

    case: Case
    must_break: frozenset[Rule] | None
    note: str = ""

    @property
    def is_control(self) -> bool:
        """Whether this shows what a model without a payload gives."""
        return self.case.arm.payload is not PayloadPolicy.BUFFER


@dataclass(frozen=True)
class Where:
    """What a whole run shares: family, dtype and device names, seed."""

    family: str
    dtype: str = "float32"
    device: str = "cpu"
    seed: int = 0


def graph_budget(trace: Trace, arm: ArmSpec) -> int:
    """Graphs a correct buffer needs over a trace.

    Without guards one graph serves every size.  With guards torch specialises 0
    and 1 tokens, each in a graph of its own (torch's 0/1 specialisation).
    """
    if arm.guards in {GuardPolicy.DROP_ALL, GuardPolicy.SHAPE_ENV_ONLY}:
        return 1
    sizes = {min(step.tokens, 2) for step in trace if step.op in RUNS_DECODER}
    return max(1, len(sizes))


def plan_incident(incident: Incident, where: Where) -> list[Planned]:
    """The runs of an incident over its revisions, controls added, cheap backends first."""
    known = [
        Planned(
            _case(where, revision, Trace.parse(run.trace), arm),
            frozenset(run.broken.get(revision, ())),
            run.note,
        )
        for run in incident.run
        for arm in map(ArmSpec.parse, run.arms)
        for revision in run.revisions or incident.revisions
    ]
    return sorted([*_controls(incident, where), *known], key=_cost)


def plan_source(incident: Incident, where: Where, label: str, model_class: str) -> list[Planned]:
    """The runs of an incident on one upstream class, of which nothing is expected."""
    runs = [
        Planned(_of_source(_case(where, label, Trace.parse(run.trace), arm), model_class), None, run.note)
        for run in incident.run
        for arm in map(ArmSpec.parse, run.arms)
    ]
    return sorted([*_controls(incident, where), *runs], key=_cost)


def plan_audit(
    where: Where, label: str, model_class: str, texts: Iterable[str] = AUDIT_TRACES
) -> list[Planned]:
    """Traces on one upstream class, no decoder beside it; by default the audit traces."""
    traces = map(Trace.parse, texts)
    cases = (replace(_case(where, label, trace, EAGER), compare=Compare.NOTHING) for trace in traces)
    return [Planned(_of_source(case, model_class), None) for case in cases]


def plan_check(where: Where, label: str) -> list[Planned]:
    """The whole buffer contract on one class of a user's own, uncompiled."""
    traces = map(Trace.parse, (*AUDIT_TRACES, *CONTRACT_TRACES))
    return [Planned(_case(where, label, trace, EAGER), None) for trace in traces]


def plan_workload(
    incident: Incident, where: Where, trace: Trace, source: tuple[str, str] | None = None
) -> list[Planned]:
    """A workload over all revisions with the guards dropped, and over the faulty ones with them kept.

    `source` is the label and model class of an upstream class to run instead.
    Traffic that alternates compiles a graph for each structure it has seen, so
    graphs are counted, and not judged.
    """
    dropped, kept = ArmSpec.parse("eager/drop_all"), ArmSpec.parse("eager/stock")
    if source is not None:
        planned = [_of_source(_case(where, source[0], trace, arm), source[1]) for arm in (dropped, kept)]
    else:
        pairs = [*((one, dropped) for one in incident.revisions), *((one, kept) for one in incident.faulty)]
        planned = [_case(where, revision, trace, arm) for revision, arm in pairs]
    return [Planned(replace(case, compare=Compare.EAGER), None) for case in planned]


def narrow(plan: Iterable[Planned], trace: Trace | None, arm: ArmSpec | None) -> list[Planned]:
    """The part of a plan with this arm; with a trace or arm of the user's own, the plan rebuilt on it.

    Nothing is expected of what the catalogue does not cover.
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
    trace = Trace.parse(incident.run[0].trace)
    if any(step.op in RUNS_DECODER for step in trace):
        for payload in (PayloadPolicy.NONE, PayloadPolicy.ZERO):
            yield Planned(_case(where, CONTROL_REVISION, trace, ArmSpec(payload=payload)), frozenset())


def _case(where: Where, revision: str, trace: Trace, arm: ArmSpec) -> Case:
    return Case(
        family=where.family, revision=revision, trace=trace, arm=arm, dtype=where.dtype,
        device=where.device, seed=where.seed, graph_budget=graph_budget(trace, arm),
    )  # fmt: skip
