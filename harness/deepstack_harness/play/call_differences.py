"""Differences between two calls of a region: of return values, of changed arguments and state, and of inputs.

Tensors are compared within a tolerance that was measured: `limits_of` takes the noise that another rounding
of each result makes in the region itself. All else has to be equal, containers and types included.
"""

import math
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from deepstack_harness.compile.distances import apart, largest
from deepstack_harness.compile.watch_facts import InputFacts, input_facts
from deepstack_harness.contract.observation import NOT_FINITE
from deepstack_harness.contract.steps import Aspect, Difference
from deepstack_harness.contract.tolerances import region_limit
from deepstack_harness.play.region_calls import Left, facts_of
from deepstack_harness.play.region_state import values_in


def limits_of(left: Left, rounded: Sequence[Left] = (), coarsest: float = 0.0) -> dict[str, float]:
    """Return the tolerance of each tensor by name (`contract.tolerances`).

    `rounded` are runs in which results were rounded otherwise, `coarsest` is the eps of the narrowest dtype
    of them.
    """
    limits = {}
    floats = [leaf for leaf in left.values.values() if isinstance(leaf, Tensor) and leaf.is_floating_point()]
    unit = min(1.0, max(map(largest, floats), default=0.0))
    for name, value in left.values.items():
        if isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex()):
            others = (run.values.get(name) for run in rounded)
            moved = max((apart(value, other) for other in others if isinstance(other, Tensor)), default=0.0)
            eps = torch.finfo(value.dtype).eps
            limits[name] = region_limit(eps, largest(value), unit, moved, max(eps, coarsest))
    return limits


def is_changed(before: object, after: object) -> bool:
    """Return whether two values differ at all."""
    return bool(differences_of("", before, after, {}))


def aspect_of(then: InputFacts, now: InputFacts) -> Aspect | None:
    """Return how an input of a call differs from the warm-up; None where tracing sees no difference."""
    if then is now:
        return None
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
    """Return what other sizes do not change in strides: the order of dimensions, and which are expanded.

    Empty for contiguous strides and where a size of at most 1 makes strides arbitrary.
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


def largest_distance(wanted: object, actual: object, limits: Mapping[str, float]) -> float:
    """Return the largest distance of two return values, 0 where all are within `limits`."""
    differences = differences_of("answer", wanted, actual, limits)
    return max((NOT_FINITE if leaf.distance is None else leaf.distance for leaf in differences), default=0.0)


def differences_of(
    place: str, wanted: object, actual: object, limits: Mapping[str, float]
) -> list[Difference]:
    """Return where two values differ by more than the limit of their place (0 where it has none)."""
    if not _alike(wanted, actual) and not (isinstance(wanted, Tensor) and isinstance(actual, Tensor)):
        return [Difference(place, f"{input_facts(actual)}, not {input_facts(wanted)}")]
    return list(_differ(values_in(place, wanted), values_in(place, actual), limits))


def differences_in_place(wanted: Left, actual: Left, limits: Mapping[str, float]) -> list[Difference]:
    """Compare the arguments and the state after a call, without its return value."""
    one, other = (
        {name: value for name, value in left.values.items() if not name.startswith("answer")}
        for left in (wanted, actual)
    )
    return list(_differ(one, other, limits))


def _differ(
    wanted: Mapping[str, object], actual: Mapping[str, object], limits: Mapping[str, float]
) -> Iterator[Difference]:
    for name in dict.fromkeys([*wanted, *actual]):
        if name not in wanted or name not in actual:
            yield Difference(name, "missing" if name not in actual else "not there uncompiled")
        elif wanted[name] is not actual[name]:
            yield from _differ_leaf(name, wanted[name], actual[name], limits.get(name, 0.0))


def _differ_leaf(name: str, wanted: object, actual: object, limit: float) -> Iterator[Difference]:
    if not isinstance(wanted, Tensor) or not isinstance(actual, Tensor):
        nans = [leaf for leaf in (wanted, actual) if isinstance(leaf, float) and math.isnan(leaf)]
        if not _alike(wanted, actual) or (wanted != actual and len(nans) < 2):
            yield Difference(name, f"{facts_of(actual)}, not {facts_of(wanted)}")
        return
    if (wanted.shape, wanted.dtype, wanted.device) != (actual.shape, actual.dtype, actual.device):
        yield Difference(name, f"{input_facts(actual)}, not {input_facts(wanted)}")
    elif (distance := apart(wanted, actual)) > limit:
        yield Difference(name, "", distance, limit)


def _alike(one: object, other: object) -> bool:
    """Return whether two types are the same; a class that every run defines anew is compared by its name."""
    return (type(one).__module__, type(one).__qualname__) == (
        type(other).__module__,
        type(other).__qualname__,
    )
