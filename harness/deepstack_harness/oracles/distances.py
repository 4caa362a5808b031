"""Distances of outputs to eager: what is accepted, and which step of a case is the worst.

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

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from deepstack_harness.contract.case import Case
from deepstack_harness.contract.observation import Distances, Observation
from deepstack_harness.contract.trace import Op, Step
from deepstack_harness.oracles.base import numbered_steps

FLOORS = {"bfloat16": 2**-3, "float16": 2**-6, "float32": 1e-5, "float64": 1e-12}
"""Least tolerance by dtype, absolute: 16 units in the last place at 1 for half precision."""
ROUNDINGS = 3
"""Tolerance in units of the distance of eager from fp64."""
HALF = frozenset({"bfloat16", "float16"})


class MeasuredStep(NamedTuple):
    """A step (numbered from 1) whose output was compared, and how far it was from its references."""

    number: int
    step: Step
    distances: Distances


def tolerance(case: Case, distances: Distances) -> float:
    """Return the largest accepted distance of one forward to eager."""
    return 0.0 if case.dtype in HALF and rounds_as_eager(case) else explained(case, distances)


def explained(case: Case, distances: Distances) -> float:
    """Return the largest distance that another rounding than eager's explains."""
    return max(FLOORS[case.dtype], ROUNDINGS * distances.rounding)


def rounds_as_eager(case: Case) -> bool:
    """Say whether the arm calls eager's kernels in eager's order; ranks add up parts of a sum."""
    return not case.arm.by_inductor and case.arm.ranks == 1


def measured_steps(case: Case, observation: Observation) -> list[MeasuredStep]:
    """Return the steps whose output was compared, in order; none where no step was played."""
    if not observation.steps:
        return []
    return [
        MeasuredStep(number, step, facts.distances)
        for number, step, facts in numbered_steps(case, observation)
        if facts.distances is not None
    ]


def worst_step(case: Case, observation: Observation) -> MeasuredStep | None:
    """Return the step that is furthest above its tolerance; of equals the one that the payload moves most.

    A step without a payload may be the wrong one, where it reads what was cleared.  None where no step was
    compared.
    """
    return _furthest(case, measured_steps(case, observation))


def case_distances(case: Case, observation: Observation) -> Distances | None:
    """Return the distances of a whole case: to eager those of its worst step.

    A step without a payload knows nothing of the payload's effect, so all else comes from the worst step
    that a payload takes part in, if there is one.  None where no step was compared, and where equal outputs
    show nothing.
    """
    measured = measured_steps(case, observation)
    with_payload = [step for step in measured if step.distances.effect > 0]
    worst, shown = _furthest(case, measured), _furthest(case, with_payload or measured)
    if worst is None or shown is None or shows_nothing(case, worst, measured):
        return None
    return replace(shown.distances, eager=worst.distances.eager)


def shows_nothing(case: Case, worst: MeasuredStep, measured: Sequence[MeasuredStep]) -> bool:
    """Say whether all outputs are equal, and a payload was set that no decoder run could read."""
    sets = any(step.op is Op.SET for step in case.trace)
    reached = any(step.distances.effect > 0 for step in measured)
    return sets and not reached and _excess(case, worst.distances) <= 0


def _furthest(case: Case, measured: Sequence[MeasuredStep]) -> MeasuredStep | None:
    return max(measured, key=lambda one: (_excess(case, one.distances), one.distances.effect), default=None)


def _excess(case: Case, apart: Distances) -> float:
    return apart.eager - tolerance(case, apart)
