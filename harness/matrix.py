"""What to run: incidents and questions turned into cases, cheap arms first.  No torch."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from harness.arm import ArmSpec, Backend, GuardPolicy, PayloadPolicy
from harness.case import Case
from harness.incidents import Incident, Run
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


def plan_incident(incident: Incident, where: Where, revisions: Iterable[str]) -> list[Planned]:
    """The runs of an incident over revisions, controls added, cheap backends first."""
    known = [
        Planned(_case(where, revision, Trace.parse(run.trace), arm), _expected(incident, run, revision), run.note)
        for run in incident.run
        for arm in map(ArmSpec.parse, run.arms)
        for revision in revisions
        if not run.revisions or revision in run.revisions
    ]
    return sorted([*_controls(incident, where), *known], key=lambda planned: _COST.index(planned.case.arm.backend))


def plan_custom(
    where: Where, revisions: Iterable[str], traces: Sequence[Trace], arms: Sequence[ArmSpec]
) -> list[Planned]:
    """Traces and arms of the user's own: nothing is expected of them beforehand."""
    return [
        Planned(_case(where, revision, trace, arm), None)
        for arm in arms
        for trace in traces
        for revision in revisions
    ]


def for_source(planned: Planned, label: str, model_class: str) -> Planned:
    """The same case on an upstream class, of which nothing is expected."""
    case = replace(planned.case, revision=label, source=label, model_class=model_class)
    return Planned(case, None, planned.note)


def arms_of(incident: Incident) -> list[ArmSpec]:
    """Every arm an incident is run under, once."""
    return list(dict.fromkeys(ArmSpec.parse(arm) for run in incident.run for arm in run.arms))


def _expected(incident: Incident, run: Run, revision: str) -> frozenset[Rule] | None:
    known = revision in incident.revisions
    return frozenset(run.broken.get(revision, ())) if known else None


def _controls(incident: Incident, where: Where) -> Iterator[Planned]:
    trace = Trace.parse(incident.run[0].trace)
    if any(step.op in RUNS_DECODER for step in trace):
        for payload in (PayloadPolicy.NONE, PayloadPolicy.ZERO):
            yield Planned(_case(where, CONTROL_REVISION, trace, ArmSpec(payload=payload)), frozenset(), "control")


def _case(where: Where, revision: str, trace: Trace, arm: ArmSpec) -> Case:
    return Case(
        family=where.family, revision=revision, trace=trace, arm=arm, dtype=where.dtype,
        device=where.device, seed=where.seed, graph_budget=graph_budget(trace, arm),
    )  # fmt: skip
