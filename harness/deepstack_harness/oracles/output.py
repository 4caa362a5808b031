"""R0: compiled or captured equals eager, and the payload matters enough for that to mean something.

The tolerance comes from measurement: torch 2.13 CPU, the tiny Qwen3-VL and Granite decoders, 60
seeds, at 1, 2, 9, 33 and 128 tokens; outputs reach 5.6.  Largest distances, but for the last column,
which has the smallest that one skipped level or two swapped ones make:

| dtype    | eager to fp64 | Inductor to eager | the same in units of eager to fp64 | fault |
|----------|---------------|-------------------|------------------------------------|-------|
| bfloat16 | 0.08          | 0.08              | 2.1                                | 0.22  |
| float16  | 0.010         | 0.012             | 2.1                                | 0.22  |
| float32  | 2.1e-6        | 2.1e-6            | 2.7                                | 0.22  |
| float64  | 0             | 2.1e-14           | -                                  | 0.22  |

Both stray from fp64 by about as much, so from each other by up to twice that, and more where the
largest strays meet: three times is accepted (`ROUNDINGS`).  A floor above all that was measured
(`FLOORS`) is for steps of few tokens, where eager may by chance come close to fp64, and for float64.

The backends eager and aot_eager, and graphs captured without a compiler, call eager's own kernels in
eager's order: their distance was 0 everywhere.  In half precision no more is accepted of them, so
that another order of the additions is seen (sglang 34690; 0.02 to 0.06 in bfloat16).  Inductor hides
that in its own rounding, with `emulate_precision_casts` too: it then rounds between pointwise
operations, but still fuses a matrix product with the sum behind it, and reduces in an order of its
own, and stays up to 2.0 times as far from eager as eager is from fp64.
"""

from deepstack_harness.contract.arm_spec import Backend
from deepstack_harness.contract.case import NOT_FINITE, Case, Distances, Judgement, Observation
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.trace import RUNS_DECODER, Op, Step
from deepstack_harness.oracles.base import against, error, numbered_steps, skip

FLOORS = {"bfloat16": 2**-3, "float16": 2**-6, "float32": 1e-5, "float64": 1e-12}
"""Least tolerance by dtype, absolute: 16 units in the last place at 1 for half precision."""
ROUNDINGS = 3
"""Tolerance in units of the distance of eager from fp64."""
EFFECT = 10
"""The payload must move the output by this many tolerances: a tenth of it must show."""
HALF = frozenset({"bfloat16", "float16"})

Measured = tuple[int, Step, Distances]


def tolerance(case: Case, distances: Distances) -> float:
    """The largest accepted distance of one forward to eager."""
    return 0.0 if case.dtype in HALF and rounds_as_eager(case) else explained(case, distances)


def explained(case: Case, distances: Distances) -> float:
    """The largest distance that other rounding than eager's explains."""
    return max(FLOORS[case.dtype], ROUNDINGS * distances.rounding)


def rounds_as_eager(case: Case) -> bool:
    """Whether the arm calls eager's kernels in eager's order; ranks add up parts of a sum."""
    return case.arm.backend is not Backend.INDUCTOR and case.arm.ranks == 1


def judge(case: Case, observation: Observation) -> Judgement:
    """The step that is furthest above its tolerance, or closest to it."""
    why_not = _not_judged(case, observation)
    if why_not:
        return skip(Rule.R0, why_not)
    if observation.error:
        return error(Rule.R0, observation.error)
    return _crash(case, observation) or _compare(case, observation)


def _not_judged(case: Case, observation: Observation) -> str | None:
    if not (case.arm.compiled or case.arm.captured):
        return f"arm {case.arm.name} is neither compiled nor captured: others are compared with it"
    if observation.routed and case.dtype in HALF:
        return f"in {case.dtype} rounding may choose another expert: such families are compared in float32"
    return None


def _compare(case: Case, observation: Observation) -> Judgement:
    measured = [
        (number, step, facts.distances)
        for number, step, facts in numbered_steps(case, observation)
        if facts.distances is not None
    ]
    if not measured:
        return skip(Rule.R0, _why_not(observation))
    number, step, worst = max(measured, key=lambda one: (_excess(case, one[2]), one[2].effect))
    limit = tolerance(case, worst)
    if worst.eager <= limit and _never_reached(case, observation):
        return skip(Rule.R0, _why_not(observation))
    weak = _weak(case, measured)
    if weak:
        return error(
            Rule.R0, f"the payload moves the output by {weak.effect:.2g} only: too little to judge by"
        )
    return against(Rule.R0, worst.eager, limit, "abs", f"step {number} '{step}': {_describe(worst)}")


def _excess(case: Case, found: Distances) -> float:
    return found.eager - tolerance(case, found)


def _weak(case: Case, measured: list[Measured]) -> Distances | None:
    """The first run that a payload took part in and hardly changed."""
    hardly = (found for _, _, found in measured if 0 < found.effect <= EFFECT * tolerance(case, found))
    return next(hardly, None)


def _describe(found: Distances) -> str:
    without = "" if found.no_deepstack is None else f"{found.no_deepstack:.2g} from no-deepstack, "
    return f"{found.eager:.2g} from eager, {without}{found.zero_deepstack:.2g} from zero-deepstack"


def _crash(case: Case, observation: Observation) -> Judgement | None:
    """The first exception of the decoder; one at the recompile limit is ours, and R11 tells it."""
    if observation.graphs and observation.graphs.limit_hit:
        return None
    for number, step, facts in numbered_steps(case, observation):
        if facts.raised and facts.raised.call == "decoder":
            said = f"step {number} '{step}' raised {facts.raised.type}: {facts.raised.message}"
            return against(Rule.R0, NOT_FINITE, FLOORS[case.dtype], "abs", said)
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
