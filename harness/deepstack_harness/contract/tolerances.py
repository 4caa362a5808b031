"""How far apart two results may be: every factor and floor of a distance, and what it was measured by.

All distances are the largest absolute difference of two elements (`compile.distances`). Noise is how far a
result moves where each operation rounds otherwise (`torch_compat.modes.OtherLastBits`), or how far it is from
fp64. A limit is the larger of a floor and a multiple of the noise; what differs between the detectors is
stated at each of them. `docs/reference/tolerances.md` is the page for users.

Decoders (R0, R9): torch 2.13 CPU, the tiny Qwen3-VL and Granite decoders, 60 seeds, at 1, 2, 9, 33 and 128
tokens; outputs reach 5.6. Largest distances, but for the last column, which has the smallest that one skipped
level or two swapped ones make:

| dtype    | eager to fp64 | Inductor to eager | the same in units of eager to fp64 | fault |
|----------|---------------|-------------------|------------------------------------|-------|
| bfloat16 | 0.08          | 0.08              | 2.1                                | 0.22  |
| float16  | 0.010         | 0.012             | 2.1                                | 0.22  |
| float32  | 2.1e-6        | 2.1e-6            | 2.7                                | 0.22  |
| float64  | 0             | 2.1e-14           | -                                  | 0.22  |

Both stray from fp64 by about as much, so from each other by up to twice that, and more where the
largest strays meet: three times is accepted (`ROUNDINGS`). A floor above all that was measured
(`FLOORS`) is for steps of few tokens, where eager may by chance come close to fp64, and for float64.

The backends eager and aot_eager, and graphs captured without a compiler, call eager's own kernels in eager's
order: their distance was 0 everywhere. In half precision no more is accepted of them, so that another order
of the additions is seen (sglang 34690; 0.02 to 0.06 in bfloat16). Inductor hides that in its own rounding,
with `emulate_precision_casts` too: it then rounds between pointwise operations, but still fuses a matrix
product with the sum after it, and reduces in an order of its own, and stays up to 2.0 times as far from eager
as eager is from fp64.

Regions (I1 to I5): torch 2.13, Inductor on a CPU, perceptron, norms, attention, softmax, chains, sums that
cancel, long sums, four inputs each, in units of that noise: float32 at most 1.0, and 8.6 for a sum of 2,048
elements, whose additions inside one kernel no operation shows; bfloat16, whose kernels add in float32, at
most 0.5. float16 was measured before, by nine regions and by narrow results only: at most 0.48.
"""

import math

FLOORS = {"bfloat16": 2**-3, "float16": 2**-6, "float32": 1e-5, "float64": 1e-12}
"""Least tolerance of a decoder by dtype, absolute: 16 units in the last place at 1 for half precision."""
ROUNDINGS = 3
"""Tolerance of a decoder in units of its noise."""
HALF = frozenset({"bfloat16", "float16"})
EFFECT = 10
"""The payload must move the output by this many tolerances: a tenth of it must show."""

REGION_UNITS = 32
"""Least tolerance of a region in units in the last place of its largest value, for one whose noise is 0."""
_OF_FLOAT32 = 2.0**-23
"""The eps of float32: that of a dtype with fewer digits is larger."""
_REGION_ROUNDINGS, _NARROW_ROUNDINGS = 16, 2
"""Tolerance of a region in units of its noise: twice what was measured for kernels that add in the dtype
itself, and four times that for those that add in a wider one."""

WATCH_ROUNDINGS = 8
"""Tolerance of `watch` in units in the last place of the largest value. Both runs use eager's kernels, and an
operator may choose another one. No noise is measured: that would run code of the user more often."""

FORMS_OF_A_PAYLOAD = {"bfloat16": 0.1, "float32": 1e-4}
"""Tolerance of two forms of one payload, for their largest value: that a payload arrived at all, where steps
are timed, is seen without a run for noise."""

CONFIGURATIONS = 1e-4
"""Largest relative difference of two configurations of one kernel: another order of additions in float32. The
interpreter runs the kernel by itself, and there is no uncompiled run to measure noise by."""

ENGINE_FLOOR, ENGINE_TIMES = 1e-4, 10.0
"""Tolerance of log-probabilities of an engine in float32: a floor where two runs without a payload agree to
the last digit, and a multiple of their distance, which is what batching costs; the noise of one operation
cannot be measured in another process."""

WORSE = 4.0
"""Factor on the distance of an earlier run, or on the rounding, up to which a distance is unchanged. Above it
`compare` shows the change; R0 judges the distance itself, without a history."""


def rounding_limit(dtype: str, rounding: float, scale: float) -> float:
    """Return the largest distance of values as large as `scale`; small ones need not be as far off as 1."""
    return max(FLOORS[dtype] * min(1.0, scale), ROUNDINGS * rounding)


def region_limit(eps: float, scale: float, unit: float, noise: float, coarsest: float) -> float:
    """Return the tolerance of a result of a region, with values up to `scale` and a dtype of this `eps`.

    `coarsest` is the eps of the narrowest dtype on the way. Noise of more than half of the digits is not
    rounding (a choice that flips, a state that is not put back), and the tolerance is limited to that. Where
    large numbers cancel, the small result has the absolute error of the large ones, so half of the digits
    is taken of `unit` at least: of numbers up to 1.
    """
    factor = _NARROW_ROUNDINGS if coarsest > _OF_FLOAT32 else _REGION_ROUNDINGS
    limit = max(REGION_UNITS * eps * scale, factor * noise)
    return min(limit, max(scale, unit) * math.sqrt(coarsest if noise else eps))
