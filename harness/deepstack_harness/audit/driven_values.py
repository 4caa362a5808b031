"""Values to try for an input: those that its annotation allows, as steps of an engine could pass them.

Which of them a class takes is found by calling its uncompiled `forward`.  Sizes differ from each other
(tokens, layers, hidden), so that a value of a wrong shape is refused by the code, and not broadcast.
"""

import ast
import copy
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from deepstack_harness.audit.driven_forward import LoadedRegion
from deepstack_harness.compile.torch_compat import structures
from deepstack_harness.engines.stand_ins import IntermediateTensors
from deepstack_harness.engines.text_decoder import HIDDEN, LAYERS

TOKENS = 6
"""Tokens of each call: more than the layers, so that no shape is taken for another one."""
_ENCODED = 9
"""Rows of what an encoder returns: not one for each token."""


class _Absent:
    """The value of an argument that a call leaves out."""

    def __repr__(self) -> str:
        return "absent"


ABSENT = _Absent()


@dataclass(frozen=True)
class SeenValues:
    """What the warm-up sees of an input, and what a later step sees; each call makes them anew."""

    warm_up: Callable[[], object]
    step: Callable[[], object]


def _drawn(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(7))


_TENSORS: dict[str, Callable[[], Tensor]] = {
    "rows": lambda: _drawn(TOKENS, HIDDEN),
    "layered": lambda: _drawn(TOKENS, LAYERS, HIDDEN),
    "ids": lambda: torch.arange(TOKENS) % 3 + 1,
    "mask": lambda: torch.arange(TOKENS) % 2 == 0,
    "levels": lambda: _drawn(LAYERS, TOKENS, HIDDEN),
    "in a row": lambda: _drawn(TOKENS, LAYERS * HIDDEN),
    "column": lambda: _drawn(TOKENS, 1),
    "encoded": lambda: _drawn(_ENCODED, HIDDEN),
    "row": lambda: _drawn(HIDDEN),
    "bounds": lambda: torch.tensor([0, 2, TOKENS], dtype=torch.int32),
    "number": lambda: torch.tensor(2.0),
}


def values_of(name: str, annotation: str, region: LoadedRegion) -> Iterator[Callable[[], object]]:
    """Yield what makes a value that the annotation of an input allows, the likeliest first."""
    kinds = _kinds(annotation)
    if "tensor" in kinds:
        first = (
            "mask"
            if "mask" in name or name.startswith("is_")
            else "ids"
            if re.search("ids?$|types?$", name)
            else ""
        )
        yield from (make for word, make in sorted(_TENSORS.items(), key=lambda tensor: tensor[0] != first))
    if "named" in kinds:
        yield lambda: IntermediateTensors(_by_key(name, region))
    if "dict" in kinds:
        yield lambda: _by_key(name, region)
        yield lambda: {number: _drawn(TOKENS, HIDDEN) for number in range(LAYERS)}
    if "tuple" in kinds:
        yield lambda: tuple(_drawn(TOKENS, HIDDEN) for _ in range(LAYERS))
    if "list" in kinds:
        yield lambda: [_drawn(TOKENS, HIDDEN) for _ in range(LAYERS)]
    if "int" in kinds:
        yield lambda: 2
    if "float" in kinds:
        yield lambda: 0.5
    if "bool" in kinds:
        yield lambda: True


_WORDS = {
    "named": r"IntermediateTensors", "dict": r"[dD]ict|Mapping", "tuple": r"[tT]uple|Sequence|Iterable",
    "list": r"\b[lL]ist", "int": r"\bint\b", "float": r"\bfloat\b", "bool": r"\bbool\b",
}  # fmt: skip


def _kinds(annotation: str) -> set[str]:
    """Return the kinds of values that an annotation names; all of them where it names none."""
    kinds = {kind for kind, pattern in _WORDS.items() if re.search(pattern, annotation)}
    if not kinds & {"named", "dict", "tuple", "list"} and re.search(r"Tensor\b", annotation):
        kinds.add("tensor")
    return kinds or {*_WORDS, "tensor"}


def _by_key(name: str, region: LoadedRegion) -> dict[str, Tensor]:
    """Return rows (tokens, hidden) by the keys that the code looks up, or by numbered names."""
    prefixes = region.numbered or (() if region.keys else (f"{name}_",))
    keys = [*region.keys, *(f"{prefix}{number}" for prefix in prefixes for number in range(LAYERS))]
    return {key: _drawn(TOKENS, HIDDEN) for key in keys}


def pairs_of_argument(
    name: str, region: LoadedRegion, *, given_first: bool, lost: bool
) -> Iterator[SeenValues]:
    """Yield what the warm-up and a later step may see of an optional argument.

    Where it is `lost` between two pipeline stages every step is given one: two tensors with other values.
    """
    for make in values_of(name, region.annotations.get(name, ""), region):
        if lost:
            if isinstance(make(), Tensor):
                yield SeenValues(partial(_other_of, make), make)
        else:
            yield SeenValues(make, _constant(None)) if given_first else SeenValues(lambda: ABSENT, make)


def pairs_of_attribute(
    name: str, region: LoadedRegion, *, given_first: bool, moves: bool
) -> Iterator[SeenValues]:
    """Yield what the warm-up and a later step may see of an attribute.

    It begins as `__init__` assigns it, where that is a literal; with `moves` it is a tensor that another
    one replaces.
    """
    try:
        initial = ast.literal_eval(region.initial) if region.initial is not None else None
    except ValueError:
        initial = ABSENT
    if moves:
        yield from (SeenValues(make, partial(_other_of, make)) for make in _TENSORS.values())
    elif given_first:
        yield from (SeenValues(make, _constant(None)) for make in values_of(name, "", region))
    elif isinstance(initial, bool):
        yield SeenValues(_constant(initial), _constant(not initial))
    elif isinstance(initial, int | float):
        yield from (SeenValues(_constant(initial), _constant(initial + more)) for more in (1, 2))
    elif initial is ABSENT:
        yield from (SeenValues(_constant(1), _constant(2)), SeenValues(_constant(False), _constant(True)))
        yield from (SeenValues(make, partial(_other_of, make)) for make in _TENSORS.values())
    else:
        yield from (SeenValues(_constant(initial), make) for make in values_of(name, "", region))


def _constant(value: object) -> Callable[[], object]:
    """Return what makes an equal value anew: a step may change a list in place."""
    return partial(copy.deepcopy, value)


def changed_values(given: object) -> SeenValues:
    """Return a value that the warm-up is given, and one of the same structure with other numbers."""
    return SeenValues(_constant(given), lambda: structures.map_leaves(_changed, copy.deepcopy(given)))


def _other_of(make: Callable[[], object]) -> Tensor:
    """Return a tensor of the same layout with other values, at another address."""
    changed = _changed(make())
    assert isinstance(changed, Tensor)
    return changed


def _changed(leaf: object) -> object:
    if isinstance(leaf, Tensor):
        return ~leaf if leaf.dtype is torch.bool else leaf + 1
    if isinstance(leaf, IntermediateTensors):
        return IntermediateTensors({name: tensor + 1 for name, tensor in leaf.items()})
    return leaf
