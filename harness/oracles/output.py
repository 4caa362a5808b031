"""R0: compiled equals eager, and the payload matters enough for that to mean something."""

from harness.case import NOT_FINITE, Case, Distances, Judgement, Observation
from harness.oracles.base import against, error, numbered_steps, skip
from harness.rules import Rule
from harness.trace import RUNS_DECODER, Op

FLOOR = 1e-4
"""Least tolerance, absolute: fp32 runs of the tiny decoders agree to 1e-6 (outputs are around 1)."""
ROUNDINGS = 4
"""Tolerance in units of the distance of eager from fp64: compiled code rounds elsewhere, not more."""
EFFECT = 10
"""The payload must move the output by this many tolerances, or equal outputs show nothing."""


def tolerance(distances: Distances) -> float:
    """The largest accepted distance of one forward, from how far eager itself is from fp64."""
    return max(FLOOR, ROUNDINGS * distances.rounding)


def judge(case: Case, observation: Observation) -> Judgement:
    """The step whose distance to eager is largest, measured in its tolerance."""
    if not case.arm.compiled:
        return skip(Rule.R0, f"arm {case.arm.name} is not compiled: it is what others are compared with")
    if observation.error:
        return error(Rule.R0, observation.error)
    crash = _crash(case, observation)
    if crash is not None:
        return crash
    measured = [
        (number, step, facts.distances)
        for number, step, facts in numbered_steps(case, observation)
        if facts.distances is not None
    ]
    if not measured:
        return skip(Rule.R0, _why_not(observation))
    number, step, worst = max(measured, key=lambda item: item[2].eager / tolerance(item[2]))
    if worst.eager <= tolerance(worst) and _never_reached(case, observation):
        return skip(Rule.R0, _why_not(observation))
    weak = [found for _, _, found in measured if 0 < found.effect <= EFFECT * tolerance(found)]
    if weak:
        return error(
            Rule.R0, f"the payload moves the output by {weak[0].effect:.2g} only: too little to judge by"
        )
    return against(
        Rule.R0, worst.eager, tolerance(worst), "abs", f"step {number} '{step}': {_describe(worst)}"
    )


def _describe(found: Distances) -> str:
    without = "" if found.no_deepstack is None else f"{found.no_deepstack:.2g} from no-deepstack, "
    return f"{found.eager:.2g} from eager, {without}{found.zero_deepstack:.2g} from zero-deepstack"


def _crash(case: Case, observation: Observation) -> Judgement | None:
    for number, step, facts in numbered_steps(case, observation):
        if facts.raised and facts.raised.call == "decoder":
            said = f"{facts.raised.type}: {facts.raised.message}"
            return against(Rule.R0, NOT_FINITE, FLOOR, "abs", f"step {number} '{step}' raised {said}")
    return None


def _never_reached(case: Case, observation: Observation) -> bool:
    """Whether a payload was set and no decoder run could read it: equal outputs then show nothing."""
    sets = any(step.op is Op.SET for step in case.trace)
    return sets and not any(facts.distances and facts.distances.effect > 0 for facts in observation.steps)


def _why_not(observation: Observation) -> str:
    for facts in observation.steps:
        if facts.raised and facts.step.split()[0] in RUNS_DECODER:
            return f"'{facts.step}': {facts.raised.call} raised {facts.raised.type} before the decoder ran"
    return "no step ran the decoder on a payload"
