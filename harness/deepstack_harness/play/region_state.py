"""The state of a compiled region: copied, so that every arm starts from an equal one, and compared.

A region is a module, a function, a bound method, a `functools.partial` or any callable object.  Its state is
what a call may read or write beside the arguments: attributes of objects, parameters and buffers, variables
of enclosing functions, globals that hold data.  Copies keep what is shared: two names of one tensor, views of
one storage, a variable of two functions.
"""

import copy
import functools
import re
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from deepstack_harness.compile.torch_compat import structures

T = TypeVar("T")
Region = Callable[..., object]

_CODE = (type, types.ModuleType, types.BuiltinFunctionType)
"""Globals that are no data: they are shared by all copies."""
_OF_TORCH = frozenset(vars(nn.Module())) - {"training"} | {"_is_torch_compile"}
"""Attributes that torch gives every module, or one that is compiled: parameters and buffers among them are
listed by their own names."""
_DEEPEST = 6
"""Objects within objects whose attributes are read."""


class Copier:
    """Copies regions and arguments together; what two of them share is shared by their copies."""

    def __init__(self) -> None:
        """Begin with nothing copied."""
        self._memo: dict[int, Any] = {}
        self._scopes: dict[int, dict[str, Any]] = {}

    def copy(self, thing: T) -> T:
        """Return an equal thing in other memory; functions keep their code, with variables of their own.

        Raises what `copy.deepcopy` raises, a `TypeError` as a rule, for what cannot be copied.
        """
        held = state_of(thing) if callable(thing) else values_in("thing", thing)
        for value in held.values():
            self._add_leaf(value)
        if isinstance(thing, types.FunctionType):
            return self._function(thing)  # type: ignore[return-value]
        if isinstance(thing, functools.partial):
            keywords = {name: self.copy(value) for name, value in thing.keywords.items()}
            return functools.partial(self.copy(thing.func), *map(self.copy, thing.args), **keywords)  # type: ignore[return-value]
        return copy.deepcopy(thing, self._memo)

    def _add_leaf(self, leaf: object) -> None:
        """Copy tensors that autograd made, which deepcopy refuses; a copy is a leaf."""
        if isinstance(leaf, Tensor) and not leaf.is_leaf and id(leaf) not in self._memo:
            copied = copy.deepcopy(leaf.detach(), self._memo).requires_grad_(leaf.requires_grad)
            self._memo[id(leaf)] = copied
            self._memo.setdefault(id(self._memo), []).append(leaf)  # keeps it alive, as deepcopy does

    def _function(self, function: types.FunctionType) -> types.FunctionType:
        if id(function) in self._memo:
            return self._memo[id(function)]  # type: ignore[no-any-return]
        cells = tuple(self._cell(cell) for cell in function.__closure__ or ())
        scope = self._scope(function)
        copied = types.FunctionType(function.__code__, scope, function.__name__, None, cells or None)
        self._memo[id(function)] = copied
        copied.__defaults__ = self.copy(function.__defaults__)
        copied.__kwdefaults__ = self.copy(function.__kwdefaults__)
        copied.__dict__.update(function.__dict__)
        copied.__annotations__ = function.__annotations__
        copied.__module__, copied.__qualname__ = function.__module__, function.__qualname__
        for name in _names(function.__code__):
            if name in scope and scope[name] is function.__globals__.get(name):
                scope[name] = self._shared(scope[name])
        for cell, original in zip(cells, function.__closure__ or (), strict=True):
            if _is_filled(original) and not _is_filled(cell):
                cell.cell_contents = self._shared(original.cell_contents)
        return copied

    def _cell(self, cell: types.CellType) -> types.CellType:
        return self._memo.setdefault(id(cell), types.CellType())  # type: ignore[no-any-return]

    def _scope(self, function: types.FunctionType) -> dict[str, Any]:
        """Return the globals of a copy: those of the module, one dict for all functions of it."""
        return self._scopes.setdefault(id(function.__globals__), dict(function.__globals__))

    def _shared(self, value: object) -> object:
        """Copy a value that a function reads by its name, unless it is code."""
        if isinstance(value, types.FunctionType):
            module = value.__module__ or ""
            return value if module.partition(".")[0] == "torch" else self._function(value)
        if isinstance(value, _CODE):
            return value
        try:
            return self.copy(value)
        except Exception:  # noqa: BLE001  # a lock, a file, a logger: shared, and compared run with run
            return value


def _names(code: types.CodeType) -> Iterator[str]:
    """Yield the names of globals and attributes of a code object and of the functions inside it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _is_filled(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018  # raises for an empty cell
    except ValueError:
        return False
    return True


class Value(NamedTuple):
    """One value of a state: its name as Python writes it (`self.factor`), and the value itself."""

    name: str
    value: object


def state_of(region: Region) -> dict[str, object]:
    """Return the values that a call may read or write beside its arguments, by name.

    Tensors are not copied.
    """
    return dict(_state_of(region, set()))


def frozen(values: Mapping[str, object]) -> dict[str, object]:
    """Return values by name with a copy of each tensor, which later calls do not change."""
    return {
        name: value.detach().clone() if isinstance(value, Tensor) else value for name, value in values.items()
    }


def _state_of(region: object, seen: set[int]) -> Iterator[Value]:
    if isinstance(region, functools.partial):
        yield from _state_of(region.func, seen)
        for name, value in region.keywords.items():
            yield from _values(name, value, seen, 0)
    elif isinstance(region, types.MethodType):
        yield from _attributes("self", region.__self__, seen, 0)
    elif isinstance(region, types.FunctionType):
        yield from _variables(region, seen)
    elif not isinstance(region, types.BuiltinFunctionType):
        yield from _attributes("self", region, seen, 0)


def _variables(function: types.FunctionType, seen: set[int]) -> Iterator[Value]:
    if id(function) in seen:
        return
    seen.add(id(function))
    read = {
        name: cell.cell_contents
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        if _is_filled(cell)
    }
    read |= {
        name: function.__globals__[name] for name in _names(function.__code__) if name in function.__globals__
    }
    for name, value in read.items():
        if isinstance(value, types.FunctionType) and value.__module__ == function.__module__:
            yield from _variables(value, seen)
        elif not isinstance(value, (types.FunctionType, *_CODE)):
            yield from _values(name, value, seen, 0)


def _attributes(name: str, owner: object, seen: set[int], depth: int) -> Iterator[Value]:
    if id(owner) in seen or depth > _DEEPEST:
        return
    seen.add(id(owner))
    held = dict(getattr(owner, "__dict__", {}))
    for cls in type(owner).__mro__:
        slots = cls.__dict__.get("__slots__", ())
        for slot in (slots,) if isinstance(slots, str) else slots:
            if not slot.startswith("__") and hasattr(owner, slot):
                held[slot] = getattr(owner, slot)
    if isinstance(owner, nn.Module):
        held |= held["_parameters"] | held["_buffers"] | held["_modules"]
        held = {each: value for each, value in held.items() if each not in _OF_TORCH}
    for attribute, value in held.items():
        yield from _values(f"{name}.{attribute}", value, seen, depth + 1)


def _values(name: str, value: object, seen: set[int], depth: int) -> Iterator[Value]:
    for place, leaf in structures.leaves(value):
        path = name + place
        if leaf is None or isinstance(leaf, Tensor | bool | int | float | complex | str | bytes):
            yield Value(path, leaf)
        elif isinstance(leaf, types.FunctionType | types.MethodType | types.BuiltinFunctionType | type):
            continue
        elif isinstance(leaf, set | frozenset):
            yield Value(path, sorted(map(repr, leaf)))
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
    """Return what an argument or an answer holds, by name: `cache['k'][0]`, `batch.ids`, lengths and keys."""
    return dict(_values(name, value, set(), 0))


def set_value(region: Region, name: str, value: object) -> None:
    """Give a value of `state_of` another content.  Raises where the place is none that can be written."""
    root, rest = _ROOT.match(name).groups()  # type: ignore[union-attr]
    function = _function_of(region)
    if root != "self" and function is not None and not rest:
        cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
        if root in cells:
            cells[root].cell_contents = value
            return
    _assign(_scope_of(region, root), f"{root}{rest}", value)


_ROOT = re.compile(r"(\w+)(.*)", re.DOTALL)


def _function_of(region: Region) -> types.FunctionType | None:
    while isinstance(region, functools.partial):
        region = region.func
    return region if isinstance(region, types.FunctionType) else None


def _scope_of(region: Region, root: str) -> Mapping[str, object]:
    """Return where a root of names of `state_of` stands: `self`, a variable of a function, or a global."""
    function = _function_of(region)
    while isinstance(region, functools.partial):
        region = region.func
    if root == "self" or function is None:
        return {"self": getattr(region, "__self__", region)}
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    return {root: cells[root].cell_contents} if root in cells else function.__globals__


def _assign(scope: Mapping[str, object], path: str, value: object) -> None:
    exec(f"{path} = value", {"__builtins__": {}}, _Assigning(scope, value))  # our own text


def make_equal(
    region: Region,
    arguments: Mapping[str, object],
    wanted: Mapping[str, object],
    actual: Mapping[str, object],
    places: Iterable[str],
) -> None:
    """Give state and arguments at `places` the wanted values, tensors in their own memory where they fit.

    `wanted` and `actual` are those of `values_left`.  Raises where a place cannot be written.
    """
    sizes = [place for place in places if place.endswith(_SIZES)]
    for place in [*sizes, *(place for place in places if place not in sizes)]:
        of_argument = place.startswith(_ARGUMENT)
        path = place.removeprefix(_ARGUMENT) if of_argument else place
        scope = arguments if of_argument else _scope_of(region, _ROOT.match(path)[1])  # type: ignore[index]
        if place in sizes:
            _resize(eval(path.rpartition(" (")[0], {"__builtins__": {}}, dict(scope)), wanted.get(place))
        elif place not in wanted:
            with suppress(LookupError):  # of a container that has been cut
                exec(f"del {path}", {"__builtins__": {}}, dict(scope))
        elif isinstance(wanted[place], list):
            raise TypeError(f"the members of {path}, which have no names")
        elif isinstance(value := wanted[place], Tensor) and _fits(value, actual.get(place)):
            with torch.no_grad():
                eval(path, {"__builtins__": {}}, dict(scope)).copy_(value)
        elif of_argument:
            _assign(scope, path, value.clone() if isinstance(value, Tensor) else value)
        else:
            set_value(region, path, value.clone() if isinstance(value, Tensor) else value)


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


class _Assigning(dict[str, Any]):
    """Variables of an assignment: reads and writes those of `scope`, with the value beside them."""

    def __init__(self, scope: Any, value: object) -> None:  # noqa: ANN401  # globals are written, one name is not
        super().__init__(value=value)
        self._scope = scope

    def __missing__(self, name: str) -> object:
        return self._scope[name]

    def __setitem__(self, name: str, value: object) -> None:
        self._scope[name] = value
