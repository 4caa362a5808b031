"""The state of a compiled region by name: read, compared, and written.

A region is a module, a function, a bound method, a `functools.partial` or any callable object. Its state is
what a call may read or write apart from the arguments: attributes of objects and of their classes, parameters
and buffers, variables of enclosing functions, and globals with data that a function or a method of such a
class names. `state.take_snapshot` puts all of it back, so that every arm starts from an equal state.
"""

import ast
import copy
import enum
import functools
import types
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from deepstack_harness.compile.members import attributes_of, is_of_library, variables_of
from deepstack_harness.compile.torch_compat import structures

T = TypeVar("T")
Region = Callable[..., object]

_CODE = (type, types.ModuleType, types.BuiltinFunctionType)
"""Globals that are no data: all copies share them."""
_DEEPEST = 6
"""Objects within objects whose attributes are read; what lies deeper is not compared."""


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


class Value(NamedTuple):
    """One value of a state: its name as Python writes it (`self.factor`), and the value itself."""

    name: str
    value: object


class _Seen(set[int]):
    """The objects that were read, by id, with the cells or dicts of variables."""

    def __init__(self) -> None:
        super().__init__()
        self.variables: dict[str, types.CellType | dict[str, Any]] = {}
        self.objects: dict[str, Any] = {}
        """What has attributes or members, by name."""


@dataclass(frozen=True)
class Routine:
    """A function, method or class that an attribute or argument names, and its line; copies are equal."""

    name: str
    line: int
    routine: Callable[..., object] = field(compare=False)


def _line_of(routine: Callable[..., object]) -> int:
    code = getattr(routine, "__code__", None)
    return code.co_firstlineno if code else 0


def state_of(region: Region) -> dict[str, object]:
    """Return what a call may read or write apart from its arguments, by name, without copies of tensors."""
    return dict(_state_of(region, _Seen()))


def _state_of(region: object, seen: _Seen) -> Iterator[Value]:
    if isinstance(region, functools.partial):
        yield from _state_of(region.func, seen)
        for name, value in region.keywords.items():
            seen.variables[name] = region.keywords
            yield from _values(name, value, seen, 0)
    elif isinstance(region, types.MethodType):
        yield from _attributes("self", region.__self__, seen, 0)
    elif isinstance(region, types.FunctionType):
        yield from _variables(region, seen)
    elif not isinstance(region, types.BuiltinFunctionType):
        yield from _attributes("self", region, seen, 0)


def _variables(function: types.FunctionType, seen: _Seen) -> Iterator[Value]:
    if id(function) in seen:
        return
    seen.add(id(function))
    for name, value, holder in variables_of(function):
        if isinstance(value, types.FunctionType):
            seen.variables[name] = holder
            yield from _values(name, value, seen, 0)
            if value.__module__ == function.__module__:
                yield from _variables(value, seen)
        elif not isinstance(value, _CODE):
            seen.variables[name] = holder
            yield from _values(name, value, seen, 0)


def _attributes(name: str, owner: object, seen: _Seen, depth: int) -> Iterator[Value]:
    if id(owner) in seen or depth > _DEEPEST:
        return
    seen.add(id(owner))
    seen.objects[name] = owner
    held = attributes_of(owner)
    if isinstance(owner, nn.Module):
        for key, hooked in vars(owner).items():
            if key.endswith("_hooks") and hooked:
                names = [getattr(hook, "__qualname__", type(hook).__qualname__) for hook in hooked.values()]
                yield Value(f"{name}.{key}", names)
    for attribute, value in held.items():
        yield from _values(f"{name}.{attribute}", value, seen, depth + 1)
    shadowed = set(held)
    for cls in type(owner).__mro__:
        if not is_of_library(cls.__module__) and not issubclass(cls, enum.Enum):
            yield from _of_class(name, cls, shadowed, seen, depth)
            shadowed |= set(vars(cls))


def _of_class(name: str, cls: type, shadowed: set[str], seen: _Seen, depth: int) -> Iterator[Value]:
    """Yield the data of a class, as an attribute of its object, and the variables that its methods read."""
    for attribute, value in list(vars(cls).items()):
        function = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
        if isinstance(function, types.FunctionType):
            if attribute not in _MAKES:
                yield from _variables(function, seen)
        elif isinstance(value, _DATA) and attribute not in shadowed and not attribute.startswith("__"):
            yield from _values(f"{name}.{attribute}", value, seen, depth + 1)


_MAKES = ("__init__", "__new__", "__post_init__", "__setstate__")
"""Methods that run before the region is called."""
_DATA = (bool, int, float, complex, str, bytes, Tensor, list, tuple, dict, set, frozenset, type(None))


def _values(name: str, value: object, seen: _Seen, depth: int) -> Iterator[Value]:
    seen.objects.setdefault(name, value)
    for place, leaf in structures.leaves(value):
        path = name + place
        if leaf is None or isinstance(leaf, Tensor | bool | int | float | complex | str | bytes):
            yield Value(path, leaf)
        elif isinstance(leaf, types.FunctionType | types.MethodType | types.BuiltinFunctionType | type):
            yield Value(path, Routine(leaf.__name__, _line_of(leaf), leaf))
        elif isinstance(leaf, np.generic):
            yield Value(path, leaf.item())
        elif isinstance(leaf, np.ndarray) and leaf.dtype.kind in "biufc":
            yield Value(path, torch.from_numpy(leaf))
        elif isinstance(leaf, set | frozenset):
            yield Value(path, sorted(map(repr, leaf)))
        elif isinstance(leaf, weakref.ref):
            yield from _values(f"{path}()", leaf(), seen, depth + 1)
        elif type(leaf).__module__.partition(".")[0] in ("torch", "builtins") and not isinstance(
            leaf, nn.Module
        ):
            yield Value(path, type(leaf).__qualname__)
        else:
            yield from _attributes(path, leaf, seen, depth)
    if isinstance(value, list | tuple | dict):
        keys = list(value) if isinstance(value, dict) else len(value)
        yield Value(f"{name} (its {'keys' if isinstance(value, dict) else 'length'})", keys)


def values_in(name: str, value: object) -> dict[str, object]:
    """Return the leaves of a value by name: `cache['k'][0]`, `batch.ids`, lengths and keys."""
    return dict(_values(name, value, _Seen(), 0))


def set_value(region: Region, name: str, value: object) -> None:
    """Replace a value of `state_of`. Raises where the place cannot be written."""
    if isinstance(value, Routine):
        value = value.routine
    _place_of(_walked(region), name).write(value)


def set_input(region: Region, arguments: dict[str, object], name: str, value: object) -> None:
    """Replace a side input: in `arguments`, which have the names of parameters, or in the region.

    Raises where the place cannot be written.
    """
    seen = _walked_arguments(arguments)
    if name in arguments or any(name.startswith((f"{argument}.", f"{argument}[")) for argument in arguments):
        _place_of(seen, name).write(value)
    else:
        set_value(region, name, value)


def _walked_arguments(arguments: dict[str, object]) -> _Seen:
    seen = _Seen()
    for name, argument in arguments.items():
        seen.variables[name] = arguments
        for _ in _values(name, argument, seen, 0):
            pass
    return seen


class _Place(NamedTuple):
    """Where a value is: a member of a container, the content of a cell, or an attribute of an object.

    `outer` is the place of the container; it is used where the container is a tuple, which is replaced.
    """

    holder: Any
    key: Any
    is_member: bool = False
    outer: "_Place | None" = None

    def read(self) -> object:
        if isinstance(self.holder, types.CellType):
            return self.holder.cell_contents
        return self.holder[self.key] if self.is_member else getattr(self.holder, self.key)

    def write(self, value: object) -> None:
        if isinstance(self.holder, types.CellType):
            self.holder.cell_contents = value
        elif self.is_member and isinstance(self.holder, tuple) and self.outer is not None:
            self.outer.write((*self.holder[: self.key], value, *self.holder[self.key + 1 :]))
        elif self.is_member:
            self.holder[self.key] = value
        elif isinstance(self.holder, enum.Enum):
            raise TypeError(f"{self.holder} is itself what code compares with")
        elif isinstance(getattr(self.holder, self.key, None), nn.Parameter) and isinstance(value, Tensor):
            setattr(self.holder, self.key, nn.Parameter(value.detach(), value.requires_grad))
        else:
            setattr(self.holder, self.key, value)

    def delete(self) -> None:
        if self.is_member:
            del self.holder[self.key]
        else:
            delattr(self.holder, self.key)


def _walked(region: Region) -> _Seen:
    seen = _Seen()
    for _ in _state_of(region, seen):
        pass
    return seen


def _place_of(seen: _Seen, path: str) -> _Place:
    """Return the place of a name of `state_of`. A child of a module may have any name: `self.a-b.2.scale`.

    Raises `LookupError` where nothing leads there.
    """
    if path in seen.variables:
        holder = seen.variables[path]
        return _Place(holder, path, isinstance(holder, dict))
    names = [name for name in seen.objects if path.startswith((f"{name}.", f"{name}["))]
    if not names:
        raise LookupError(path)
    name = max(names, key=len)
    holder, rest = seen.objects[name], path[len(name) :]
    place = _place_of(seen, name) if type(holder) is tuple else None
    while rest.startswith("["):
        key, rest = _key_at(holder, rest)
        place = _Place(holder, key, is_member=True, outer=place)
        if not rest:
            return place
        holder = holder[key]
    return _Place(holder, rest.removeprefix("."))


def _key_at(holder: Any, rest: str) -> tuple[object, str]:  # noqa: ANN401  # a container
    """Return the first key of `['image'][0]`, and what follows it; a key need not be there yet."""
    keys = holder if isinstance(holder, dict) else range(len(holder))
    for key in keys:
        if rest.startswith(written := f"[{key!r}]"):
            return key, rest.removeprefix(written)
    return ast.literal_eval(rest[1:-1]), ""


def make_equal(
    region: Region,
    arguments: Mapping[str, object],
    wanted: Mapping[str, object],
    actual: Mapping[str, object],
    places: Iterable[str],
) -> None:
    """Give state and arguments at `places` the wanted values, tensors in their own memory where they fit.

    `wanted` and `actual` are those of `values_left`. Raises where a place cannot be written.
    """
    of_region, of_call = _walked(region), _walked_arguments(dict(arguments))
    sizes = [place for place in places if place.endswith(_SIZES)]
    for place in [*sizes, *(place for place in places if place not in sizes)]:
        seen, path = (of_call if place.startswith(_ARGUMENT) else of_region), place.removeprefix(_ARGUMENT)
        if place in sizes:
            _resize(_place_of(seen, path.rpartition(" (")[0]).read(), wanted.get(place))
            continue
        there = _place_of(seen, path)
        value = wanted.get(place)
        if place not in wanted:
            with suppress(LookupError):  # of a container that has been cut
                there.delete()
        elif isinstance(value, list):
            raise TypeError(f"the members of {path}, which have no names")
        elif isinstance(value, Tensor) and _fits(value, actual.get(place)):
            with torch.no_grad():
                torch.as_tensor(there.read()).copy_(value)
        elif isinstance(value, Routine):
            set_value(region, path, value)
        else:
            there.write(value.clone() if isinstance(value, Tensor) else value)
    for place in sizes:  # what came back is last
        seen, path = (of_call if place.startswith(_ARGUMENT) else of_region), place.removeprefix(_ARGUMENT)
        container, keys = _place_of(seen, path.rpartition(" (")[0]).read(), wanted.get(place)
        if isinstance(container, dict) and isinstance(keys, list):
            members = [(key, container.pop(key)) for key in keys if key in container]
            container.update(members)


_ARGUMENT, _SIZES = "argument ", ("(its length)", "(its keys)")


def _fits(value: Tensor, actual: object) -> bool:
    return isinstance(actual, Tensor) and (value.shape, value.dtype) == (actual.shape, actual.dtype)


def _resize(container: Any, size: object) -> None:  # noqa: ANN401  # a list or a dict
    """Give a list its length, or a dict its keys; the members follow by their own names."""
    if isinstance(container, dict) and isinstance(size, list):
        for key in [key for key in container if key not in size]:
            del container[key]
    elif isinstance(container, list) and isinstance(size, int):
        del container[size:]
        container.extend([None] * (size - len(container)))
    else:
        raise TypeError(f"a {type(container).__name__} of another size")
