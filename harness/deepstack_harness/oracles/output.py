"""R0: compiled or captured equals eager, and the payload matters enough for that to mean something."""

from collections.abc import Sequence

from deepstack_harness.contract.case import Case
from deepstack_harness.contract.observation import NOT_FINITE, Distances, Observation
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.trace import RUNS_DECODER
from deepstack_harness.contract.verdicts import Judgement
from deepstack_harness.oracles.base import against, error, numbered_steps, skip
from deepstack_harness.oracles.distances import (
    FLOORS,
    HALF,
    MeasuredStep,
    measured_steps,
    shows_nothing,
    tolerance,
    worst_step,
)
from deepstack_harness.oracles.observed_case import ObservedCase
from deepstack_harness.oracles.row_origins import Deviation

EFFECT = 10
"""The payload must move the output by this many tolerances: a tenth of it must show."""


def judge(observed: ObservedCase) -> Judgement:
    """Judge the step that is furthest above its tolerance, or closest to it; a decoder that raised fails."""
    case, observation = observed.case, observed.observation
    why_not = _not_judged(case, observation)
    if why_not:
        return skip(Rule.R0, why_not)
    if observation.error:
        return error(Rule.R0, observation.error)
    crashed = crashes(observed)
    if crashed:
        return against(Rule.R0, NOT_FINITE, FLOORS[case.dtype], "abs", crashed[0].detail)
    return _compare(case, observation)


def crashes(observed: ObservedCase) -> list[Deviation]:
    """Return the decoder's exceptions; at the recompile limit they are ours, and R11 tells it."""
    case, observation = observed.case, observed.observation
    if observation.graphs and observation.graphs.limit_hit:
        return []
    return [
        Deviation(
            Rule.R0, 1, "calls", f"step {number} '{step}' raised {raised.type}: {raised.message}", raised=True
        )
        for number, step, facts in numbered_steps(case, observation)
        if (raised := facts.raised) and raised.call == "decoder"
    ]


def _not_judged(case: Case, observation: Observation) -> str | None:
    if not (case.arm.compiled or case.arm.captured):
        return f"arm {case.arm.name} is neither compiled nor captured: others are compared with it"
    if observation.routed and case.dtype in HALF:
        return f"in {case.dtype} rounding may choose another expert: such families are compared in float32"
    return None


def _compare(case: Case, observation: Observation) -> Judgement:
    worst, measured = worst_step(case, observation), measured_steps(case, observation)
    if worst is None or shows_nothing(case, worst, measured):
        return skip(Rule.R0, _why_not(observation))
    apart, limit = worst.distances, tolerance(case, worst.distances)
    weak = _weak(case, measured)
    if weak:
        return error(
            Rule.R0, f"the payload moves the output by {weak.effect:.2g} only: too little to judge by"
        )
    return against(
        Rule.R0, apart.eager, limit, "abs", f"step {worst.number} '{worst.step}': {_describe(apart)}"
    )


def _weak(case: Case, measured: Sequence[MeasuredStep]) -> Distances | None:
    """Return the distances of the first step that a payload took part in and hardly changed."""
    payloads = (one.distances for one in measured if one.distances.effect > 0)
    return next((apart for apart in payloads if apart.effect <= EFFECT * tolerance(case, apart)), None)


def _describe(found: Distances) -> str:
    without = "" if found.no_deepstack is None else f"{found.no_deepstack:.2g} from no-deepstack, "
    return f"{found.eager:.2g} from eager, {without}{found.zero_deepstack:.2g} from zero-deepstack"


def _why_not(observation: Observation) -> str:
    for facts in observation.steps:
        if facts.raised and facts.step.split()[0] in RUNS_DECODER:
            return f"'{facts.step}': {facts.raised.call} raised {facts.raised.type} before the decoder ran"
    return "no step ran the decoder on a payload"
