"""The state of a region by name: read, compared, and written.

A region is a module, a function, a bound method, a `functools.partial` or any callable object. Its state is
what a call may read or write apart from the arguments: attributes of objects and of their classes, parameters
and buffers, variables of enclosing functions, and globals that its code names. `state.take_snapshot` puts all
of it back, from the same walk, so that every arm starts from an equal state.
"""

import ast
import copy
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from operator import setitem
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from deepstack_harness.compile.members import GONE, LEAVES, Keys, StatePlace, is_plain, places, plain_members
from deepstack_harness.compile.torch_compat import structures

T = TypeVar("T")
Region = Callable[..., object]


def copied(value: T) -> T:
    """Return an equal value whose tensors have memory of their own; what Python cannot copy is shared.

    Copies of results of autograd are leaves.
    """
    held = [leaf for leaf in values_in("value", value).values() if isinstance(leaf, Tensor)]
    try:
        return copy.deepcopy(value, {id(leaf): _leaf_like(leaf) for leaf in held if not leaf.is_leaf})
    except Exception:  # noqa: BLE001  # a class that refuses
        return structures.map_leaves(
            lambda leaf: _leaf_like(leaf) if isinstance(leaf, Tensor) else leaf, value
        )


def _leaf_like(tensor: Tensor) -> Tensor:
    return tensor.detach().clone().requires_grad_(tensor.requires_grad)


@dataclass(frozen=True)
class Routine:
    """A function, method or class that an attribute or argument names, and its line; copies are equal."""

    name: str
    line: int
    routine: Callable[..., object] = field(compare=False)


def state_of(region: Region) -> dict[str, object]:
    """Return what a call may read or write apart from its arguments, by name, without copies of tensors."""
    return _values_of(places([StatePlace("self", region)], _is_entered))


def values_in(name: str, value: object) -> dict[str, object]:
    """Return the leaves of a value by name: `cache['k'][0]`, `batch.ids`, lengths and keys."""
    return _values_of(_places_in({name: value}, _is_entered))


def _is_entered(place: StatePlace) -> bool:
    return not is_plain(place.value) and _is_state(place)


def _values_of(found: Iterable[StatePlace]) -> dict[str, object]:
    values: dict[str, object] = {}
    for place in found:
        if is_plain(place.value) and _is_state(place):
            values |= plain_members(place.path, place.value)
        elif type(place.value) in LEAVES and place.is_writable and not place.path.endswith("defaults__"):
            values[place.path] = place.value
        else:
            values.update((place.path, fact) for fact in _facts_of(place))
    return values


def _places_of(region: Region) -> Iterator[StatePlace]:
    return places([StatePlace("self", region)], _is_state)


def _places_in(
    values: dict[str, Any], enters: Callable[[StatePlace], bool] | None = None
) -> Iterator[StatePlace]:
    """Yield the places in values by name; code that only a value holds is not followed."""
    roots = [StatePlace(name, value, partial(setitem, values, name)) for name, value in values.items()]
    for root in roots:
        yield from places(
            [root],
            lambda place: (
                (enters or _is_state)(place) and not (isinstance(place.value, _CODE) and place.is_writable)
            ),
        )


_CODE = (types.FunctionType, types.MethodType, type)
_UNCALLED = ("__init__", "__new__", "__post_init__", "__setstate__", "__repr__")
"""Methods that run before a call of the region, or for people."""


def _is_state(place: StatePlace) -> bool:
    """Return whether what a value holds is state: not what torch retains, and no method that no call runs."""
    value = place.value
    if isinstance(value, types.FunctionType) and value.__name__ in _UNCALLED:
        return False
    if place.path.endswith(("_hooks", "__defaults__", "__kwdefaults__")):  # the latter are arguments
        return False
    if place.path.startswith("key of "):  # no call changes a key
        return False
    return not _is_opaque(value)


def _is_opaque(value: object) -> bool:
    """Return whether a value is an object of torch or Python that has no attributes of a user."""
    followed = (nn.Module, dict, list, tuple, set, frozenset, *_CODE, property, staticmethod, classmethod)
    return type(value).__module__.partition(".")[0] in ("torch", "builtins") and not isinstance(
        value, followed
    )


def _facts_of(place: StatePlace) -> Iterator[object]:
    """Yield what is compared of a value, where it has something: itself, its name, or its members' texts."""
    path, value = place.path, place.value
    if path.endswith("_hooks") and isinstance(value, dict):
        yield [getattr(hook, "__qualname__", type(hook).__qualname__) for hook in value.values()]
    elif not place.is_writable or path.endswith(("__defaults__", "__kwdefaults__")):
        return
    elif value is None or isinstance(value, Tensor | bool | int | float | complex | str | bytes | Keys):
        yield value
    elif isinstance(value, (*_CODE, types.BuiltinFunctionType)):
        code = getattr(value, "__code__", None)
        yield Routine(value.__name__, code.co_firstlineno if code else 0, value)
    elif isinstance(value, np.generic):
        yield value.item()
    elif isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
        yield torch.from_numpy(value)
    elif isinstance(value, set | frozenset):
        yield sorted(map(repr, value))
    elif _is_opaque(value) and not isinstance(value, types.ModuleType):
        yield type(value).__qualname__


def set_value(region: Region, name: str, value: object) -> None:
    """Replace a value of `state_of`. Raises where the place cannot be written."""
    _write(_by_path(_places_of(region)), name, value)


def set_input(region: Region, arguments: dict[str, object], name: str, value: object) -> None:
    """Replace a side input: in `arguments`, which have the names of parameters, or in the region.

    Raises where the place cannot be written.
    """
    if name in arguments or any(name.startswith((f"{argument}.", f"{argument}[")) for argument in arguments):
        _write(_by_path(_places_in(arguments)), name, value)
    else:
        set_value(region, name, value)


def _by_path(found: Iterable[StatePlace]) -> dict[str, StatePlace]:
    return {place.path: place for place in found}


def _write(found: Mapping[str, StatePlace], path: str, value: object) -> None:
    """Write to a place, or to one that is not there yet, in what would hold it.

    A child of a module may have any name: `self.a-b.2.scale`. Raises where nothing leads there.
    """
    if isinstance(value, Routine):
        value = value.routine
    if path in found and found[path].is_writable:
        found[path].write(value)
        return
    holders = [name for name in found if path.startswith((f"{name}.", f"{name}["))]
    if not holders or value is GONE:
        raise LookupError(path)
    name = max(holders, key=len)
    holder, rest = found[name].value, path[len(name) :]
    if rest.startswith("["):
        holder[ast.literal_eval(rest[1:-1])] = value
    else:
        setattr(holder, rest.removeprefix("."), value)


def make_equal(
    region: Region,
    arguments: Mapping[str, object],
    wanted: Mapping[str, object],
    actual: Mapping[str, object],
    differing: Iterable[str],
) -> None:
    """Give state and arguments at some places the wanted values, tensors in their own memory where they fit.

    `wanted` and `actual` are those of `values_left`. Raises where a place cannot be written.
    """
    differing = [*differing]
    if not differing:
        return
    found = _by_path(_places_of(region)) | {
        f"{_ARGUMENT}{place.path}": place for place in _places_in(dict(arguments))
    }
    sizes = [path for path in differing if path.endswith(_SIZES) and path in found]
    for path in [*sizes, *(path for path in differing if not path.endswith(_SIZES)), *sizes]:
        place, value = found.get(path), wanted.get(path)
        if path not in wanted:
            with suppress(LookupError):  # of a container that has been cut
                _write(found, path, GONE)
        elif isinstance(value, list) and not isinstance(value, Keys):
            raise TypeError(f"the members of {path}, which have no names")
        elif (
            place is not None
            and isinstance(value, Tensor)
            and isinstance(own := actual.get(path), Tensor)
            and (value.shape, value.dtype) == (own.shape, own.dtype)
        ):
            with torch.no_grad():
                torch.as_tensor(place.value).copy_(value)
        else:
            _write(found, path, value.clone() if isinstance(value, Tensor) else value)


_ARGUMENT, _SIZES = "argument ", ("(its length)", "(its keys)")
