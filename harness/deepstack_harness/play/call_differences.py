"""Differences between two calls of a region: of answers, of what they leave behind, and of their inputs.

Tensors are compared within a tolerance that was measured: `limits_of` takes the noise that rounding the
inputs makes in the region itself.  All else has to be equal, containers and types included.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from deepstack_harness.compile.watch_facts import InputFacts, input_facts
from deepstack_harness.contract.observation import NOT_FINITE
from deepstack_harness.contract.steps import Aspect, Difference
from deepstack_harness.play.region_calls import Left, facts_of
from deepstack_harness.play.region_state import values_in
from deepstack_harness.play.state import apart, largest


class NarrowNoise(NamedTuple):
    """Runs in which results of narrow dtypes were rounded otherwise, and the eps of the narrowest of them."""

    runs: tuple[Left, ...]
    coarsest: float


_MARGIN = 32
"""The tolerance in units of the noise that rounding the inputs makes, and of the dtype's last place."""
_NARROW_MARGIN = 2
"""The same of the noise that another rounding of narrow results on the way makes: a whole unit for each of
them, where a compiler that keeps more digits differs by half of one.  Measured with torch 2.13, Inductor on a
CPU, nine regions (perceptron, norms, attention, chains, sums that cancel, 8 bits), bfloat16 and float16, five
inputs each: at most 0.48 of that noise."""


def limits_of(left: Left, noisy: Left | None = None, narrow: NarrowNoise | None = None) -> dict[str, float]:
    """Return the tolerance of each tensor by name: `_MARGIN` times the noise, or units in the last place.

    Noise beyond half of the digits is no rounding (a choice that flips, a state that no copy holds), and
    gives no more tolerance than that.  What is left of larger numbers that cancel has digits of those, of
    numbers up to 1.
    """
    limits = {}
    floats = [each for each in left.values.values() if isinstance(each, Tensor) and each.is_floating_point()]
    unit = min(1.0, max(map(largest, floats), default=0.0))
    for name, value in left.values.items():
        if not isinstance(value, Tensor) or not (value.is_floating_point() or value.is_complex()):
            continue
        other = noisy.values.get(name) if noisy is not None else None
        noise = apart(value, other) if isinstance(other, Tensor) else 0.0
        scale, eps = largest(value), torch.finfo(value.dtype).eps
        limit = max(_MARGIN * eps * scale, _MARGIN * noise)
        if narrow is not None:
            others = [run.values.get(name) for run in narrow.runs]
            moved = max((apart(value, each) for each in others if isinstance(each, Tensor)), default=0.0)
            limit = max(limit, _NARROW_MARGIN * moved)
            eps = max(eps, narrow.coarsest) if moved else eps
        limits[name] = min(limit, max(scale, unit) * eps**0.5)
    return limits


def is_changed(before: object, after: object) -> bool:
    """Say whether two values differ at all."""
    return bool(differences_of("", before, after, {}))


def aspect_of(then: InputFacts, now: InputFacts) -> Aspect | None:
    """Return in what an input of a call differs from the warm-up; None for nothing that a trace would see."""
    if then.kind != now.kind:
        missing = {"absent", "None"} & {then.kind, now.kind}
        return "presence" if missing else "type"
    if then.kind == "keys":
        return None if then.value == now.value else "members"
    if now.kind != "tensor":
        return None if then.value == now.value else "value"
    pairs: tuple[tuple[Aspect, object, object], ...] = (
        ("dtype", then.dtype, now.dtype), ("device", then.device, now.device),
        ("size", len(then.shape), len(now.shape)), ("strides", _order(then), _order(now)),
        ("size", then.shape, now.shape), ("requires_grad", then.requires_grad, now.requires_grad),
    )  # fmt: skip
    return next((aspect for aspect, before, after in pairs if before != after), None)


def _order(facts: InputFacts) -> tuple[object, ...]:
    """Return what is left of strides when sizes change.

    The order of the dimensions, and which are contiguous.
    """
    wanted, expected = 1, []
    for size in reversed(facts.shape):
        expected.append(wanted)
        wanted *= max(size, 1)
    if any(size <= 1 for size in facts.shape):
        return ()
    if facts.stride == tuple(reversed(expected)):
        return ()
    return (
        tuple(sorted(range(len(facts.stride)), key=lambda dim: facts.stride[dim])),
        *(s == 0 for s in facts.stride),
    )


def distances(answer: object, others: Iterable[object]) -> Iterator[float]:
    """Yield how far an answer is from each of the others."""
    for other in others:
        apart_by = (each.distance for each in differences_of("answer", answer, other, {}))
        yield max((NOT_FINITE if each is None else each for each in apart_by), default=0.0)


def differences_of(
    place: str, wanted: object, actual: object, limits: Mapping[str, float]
) -> list[Difference]:
    """Return where two values differ by more than the limit of their place (0 where it has none)."""
    if not _alike(wanted, actual) and not (isinstance(wanted, Tensor) and isinstance(actual, Tensor)):
        return [Difference(place, f"{input_facts(actual)}, not {input_facts(wanted)}")]
    expected, got = values_in(place, wanted), values_in(place, actual)
    differences = []
    for name in dict.fromkeys([*expected, *got]):
        if name not in got or name not in expected:
            differences.append(Difference(name, "missing" if name not in got else "not there uncompiled"))
            continue
        differences += _differ_leaf(name, expected[name], got[name], limits.get(name, 0.0))
    return differences


def _differ_leaf(name: str, wanted: object, actual: object, limit: float) -> Iterator[Difference]:
    if not isinstance(wanted, Tensor) or not isinstance(actual, Tensor):
        if not _alike(wanted, actual) or (wanted != actual and not _is_nan(wanted)):
            yield Difference(name, f"{facts_of(actual)}, not {facts_of(wanted)}")
        return
    if (wanted.shape, wanted.dtype, wanted.device) != (actual.shape, actual.dtype, actual.device):
        yield Difference(name, f"{input_facts(actual)}, not {input_facts(wanted)}")
    elif (distance := apart(wanted, actual)) > limit:
        yield Difference(name, "", distance, limit)


def differences_in_place(wanted: Left, actual: Left, limits: Mapping[str, float]) -> list[Difference]:
    """Compare what a call left beside its answer: arguments and state."""
    differences = []
    for name in dict.fromkeys([*wanted.values, *actual.values]):
        if name.startswith("answer"):
            continue
        if name not in wanted.values or name not in actual.values:
            text = "missing" if name not in actual.values else "not there uncompiled"
            differences.append(Difference(name, text))
        else:
            differences += _differ_leaf(name, wanted.values[name], actual.values[name], limits.get(name, 0.0))
    return differences


def _alike(one: object, other: object) -> bool:
    """Say whether two values have one type; a class that is made anew for each run is the same by name."""
    return (type(one).__module__, type(one).__qualname__) == (
        type(other).__module__,
        type(other).__qualname__,
    )


def _is_nan(value: object) -> bool:
    return isinstance(value, float) and math.isnan(value)
