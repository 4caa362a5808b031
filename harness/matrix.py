"""What to run: incidents and questions turned into cases, cheap arms first.  No torch."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from harness.arm import ArmSpec, Backend, GuardPolicy, PayloadPolicy
from harness.case import Case
from harness.incidents import Incident
from harness.rules import Rule
from harness.trace import RUNS_DECODER, Trace

CONTROL_REVISION = "reference"
"""The controls do not depend on the buffer; they are shown once, on this revision."""
_COST = [Backend.NONE, Backend.EAGER, Backend.AOT_EAGER, Backend.INDUCTOR]


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
