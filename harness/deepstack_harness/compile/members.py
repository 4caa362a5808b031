"""The one walk over what can be reached from an object: each place with its value and how to put it back.

`places` knows where Python and torch have things: items, attributes, slots, parts of modules, variables of
functions, data of classes. The state that is put back and compared (`play.state`), the side inputs of a
region (`play.region_state`), the inputs of a captured graph (`compile.captured_inputs`) and those of a region
that runs again (`torch_compat.rerun`) are all read from it, so that they agree on what state is.
"""

import enum
import io
import random
import sys
import threading
import weakref
from array import array
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import suppress
from contextvars import ContextVar
from functools import cached_property, lru_cache, partial
from itertools import chain
from types import (
    BuiltinFunctionType,
    CellType,
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
)
from typing import Any, NamedTuple, NoReturn

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import TypeIs

_LIBRARIES = frozenset({"torch", "numpy", "triton", "transformers", "deepstack_harness", "pytest", "_pytest"})
PARTS_OF_MODULES = ("_parameters", "_buffers", "_modules")
OF_TORCH = frozenset(vars(nn.Module())) - {"training"} | {"_is_torch_compile"}
"""Attributes that torch gives every module, or a compiled one; its parts are listed by their own names."""
PLAIN = (
    type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.layout,
    torch.memory_format, type(Ellipsis), range, slice, CodeType,
)  # fmt: skip


class Keys(list[Any]):
    """The keys of a dict, in order: the value of its place `(its keys)`."""


LEAVES = frozenset((type(None), bool, int, float, complex, str, bytes))
"""Types of values that are equal where they are the same, and hold nothing; their subclasses may."""
_ENDS = (
    Keys,
    *PLAIN, Tensor, ModuleType, BuiltinFunctionType, np.ndarray, np.generic, array, bytearray, random.Random,
    np.random.Generator, torch.Generator, type(threading.Lock()), io.IOBase,
)  # fmt: skip
"""Values that lead nowhere: they hold no objects, or those of a library."""
_METHODS = (FunctionType, staticmethod, classmethod, property, cached_property)
_INDIRECT = (*_METHODS, MethodType, type, partial, weakref.ref, ContextVar)
"""Values that lead to others neither by items nor by attributes."""
_CONTAINERS = (dict, list, deque, tuple, set, frozenset)

Write = Callable[[Any], object]
GONE = object()
"""What is written to a place to take it away."""


def refuse(_: object) -> NoReturn:
    """Raise `TypeError`: the writer of a place where nothing can be put."""
    raise TypeError("nothing is written here")


class StatePlace(NamedTuple):
    """Where a value is: `self.cache['k']`, the value, and what puts another one there.

    `single` is True for what a variable, a slot or a class holds, and False for what the content of a
    container or the `__dict__` of an object has.
    """

    path: str
    value: Any
    write: Write = refuse
    outer: "StatePlace | None" = None
    single: bool = False

    @property
    def is_writable(self) -> bool:
        """Return whether something else can be put there."""
        return self.write is not refuse

    def within(
        self, path: str, value: object, write: Write = refuse, *, single: bool = False
    ) -> "StatePlace":
        """Return a place inside the value of this one."""
        return StatePlace(path, value, write, self, single)


def places(
    roots: Iterable[StatePlace], enters: Callable[[StatePlace], bool] = lambda _: True, *, whole: bool = True
) -> Iterator[StatePlace]:
    """Yield what can be reached from some places, each with its path, in the order in which Python has them.

    The attributes of an object come once, the members of a container by each of its paths. `enters` decides
    what is followed. Not `whole` are items and attributes only, and nothing of functions, classes, references
    and sizes.
    """
    seen: dict[int, object] = {}  # with the objects, so that no other object gets the id of one
    left = [*roots][::-1]
    while left:
        place = left.pop()
        yield place
        value = place.value
        if (
            type(value) in LEAVES
            or (isinstance(value, _ENDS) and not has_attributes(value))
            or (not whole and isinstance(value, _INDIRECT))
            or id(value) in seen
        ):
            continue
        if isinstance(value, _CONTAINERS):
            outer = place.outer
            while outer is not None and outer.value is not value:
                outer = outer.outer
            if outer is not None:  # one of its own members, or a member of one
                continue
        else:
            seen[id(value)] = value
        if enters(place):
            left += [*_parts_of(place, whole=whole)][::-1]


def is_plain(value: object) -> TypeIs[dict[Any, Any] | list[Any]]:
    """Return whether this is a dict or a list of numbers and texts: a leaf of many values."""
    if type(value) is dict:
        return LEAVES.issuperset(map(type, value)) and LEAVES.issuperset(map(type, value.values()))
    return type(value) is list and LEAVES.issuperset(map(type, value))


def plain_members(path: str, value: dict[Any, Any] | list[Any]) -> dict[str, Any]:
    """Return what `places` yields in such a dict or list, by path, in a fraction of the time."""
    if isinstance(value, dict):
        members = {f"{path}[{key!r}]": member for key, member in value.items()}
        return members | {f"{path} (its keys)": Keys(value)}
    members = {f"{path}[{index}]": member for index, member in enumerate(value)}
    return members | {f"{path} (its length)": len(value)}


def has_attributes(value: object) -> bool:
    """Return whether a number or text is of a class of a user that adds attributes."""
    plain = isinstance(value, float | int | str | bytes) and not isinstance(value, enum.Enum)
    return plain and bool(getattr(value, "__dict__", None))


def _parts_of(place: StatePlace, *, whole: bool) -> Iterator[StatePlace]:  # a table
    """Yield the places in the value of a place."""
    value: Any = place.value
    match value:
        case FunctionType():
            outer = place.outer  # the code of a root is of interest, or of a partial that is one
            is_root = outer is None or (outer.outer is None and isinstance(outer.value, partial))
            if is_root or not is_of_library(value.__module__ or ""):
                yield from _parts_of_function(place, value)
        case type():
            yield from _parts_of_class(place, value, ())
            yield from _parts_of_class(place, type(value), chain(*map(vars, value.__mro__)))
        case MethodType():
            yield from (place.within(place.path, part) for part in (value.__self__, value.__func__))
        case partial():
            yield place.within(place.path, value.func)
            yield place.within(f"{place.path}.args", value.args)
            writes = {name: partial(_put, value.keywords, name) for name in value.keywords}
            yield from (
                place.within(name, value.keywords[name], write, single=True) for name, write in writes.items()
            )
        case staticmethod() | classmethod() | property() | cached_property():
            functions = (getattr(value, name, None) for name in ("__func__", "fget", "fset", "func"))
            yield from (place.within(place.path, function) for function in functions if function)
        case weakref.ref():
            yield place.within(f"{place.path}()", value())
        case ContextVar():
            with suppress(LookupError):  # it has no value yet
                yield place.within(place.path, value.get(), value.set, single=True)
        case _ if not is_iterator(value):
            yield from _members(place, whole=whole) if isinstance(value, _CONTAINERS) else ()
            yield from _parts_of_object(place, whole=whole)


def _members(place: StatePlace, *, whole: bool) -> Iterator[StatePlace]:
    path, value, names = place.path, place.value, getattr(place.value, "_fields", None)
    if isinstance(value, dict):
        for key, member in [*value.items()]:
            yield place.within(f"{path}[{key!r}]", member, partial(_put, value, key))
            if whole and type(key) not in LEAVES and not isinstance(key, _ENDS):
                yield place.within(f"key of {path}[{key!r}]", key)
    elif isinstance(value, tuple):
        for index, member in enumerate(value):
            name = f".{names[index]}" if names else f"[{index}]"
            write = partial(_put_into_tuple, place, index) if place.is_writable else refuse
            yield place.within(f"{path}{name}", member, write)
    else:
        for index, member in enumerate(value):
            write = refuse if isinstance(value, set | frozenset) else partial(_put, value, index)
            yield place.within(f"{path}[{index}]", member, write)
    if not whole or isinstance(value, set | frozenset):
        return
    if isinstance(value, dict):
        yield place.within(f"{path} (its keys)", Keys(value), partial(_resize, value))
    else:
        yield place.within(f"{path} (its length)", len(value), partial(_resize, value))


def _parts_of_object(place: StatePlace, *, whole: bool) -> Iterator[StatePlace]:
    path, owner = place.path, place.value
    if type(owner) in _CONTAINERS:  # without attributes
        return
    kind: Any = type(owner)
    slots, held = slots_of(kind), attributes_in(owner)
    for name, value in held.items():
        yield place.within(
            f"{path}.{name}", value, partial(_put_attribute, owner, name), single=name in slots
        )
    if whole:
        if isinstance(owner, nn.Module):
            for name in (name for name in vars(owner) if name.endswith("_hooks") and vars(owner)[name]):
                yield place.within(f"{path}.{name}", vars(owner)[name])
        yield from _parts_of_class(place, type(owner), held.keys())


def _parts_of_class(place: StatePlace, kind: type, shadowed: Iterable[str]) -> Iterator[StatePlace]:
    """Yield the data of a class and its bases, as attributes of its object, and the methods."""
    known = set(shadowed)
    for base in kind.__mro__:
        if is_of_library(base.__module__):
            continue
        for name, value in [*vars(base).items()]:
            if isinstance(value, _METHODS):
                yield place.within(f"{place.path}.{name}", value)
            elif not (
                issubclass(base, enum.Enum)
                or name in known
                or name in ("_abc_impl", "_fields", "_field_defaults")
                or name.startswith("__")
                or isinstance(value, MemberDescriptorType | GetSetDescriptorType)  # a slot
            ):
                write = partial(_put_attribute, base, name)
                yield place.within(f"{place.path}.{name}", value, write, single=True)
        known |= vars(base).keys()


def _parts_of_function(place: StatePlace, function: FunctionType) -> Iterator[StatePlace]:
    for variable in variables_of(function):
        if not isinstance(variable.value, ModuleType):
            yield place.within(variable.name, variable.value, variable.write, single=True)
        elif not is_of_library(variable.value.__name__):
            scope = vars(variable.value)
            for name in (name for name in names_in(function.__code__) if name in scope):
                if not isinstance(scope[name], ModuleType):
                    yield place.within(name, scope[name], partial(_put, scope, name), single=True)
    for name, value in attributes_in(function).items():
        yield place.within(f"{place.path}.{name}", value, partial(_put_attribute, function, name))
    for name in ("__defaults__", "__kwdefaults__"):
        yield place.within(f"{place.path}.{name}", getattr(function, name), partial(setattr, function, name))


def _put(holder: Any, key: Any, value: object) -> None:  # noqa: ANN401  # a container
    if value is GONE:
        del holder[key]
    else:
        holder[key] = value


def _put_into_tuple(place: StatePlace, index: int, value: object) -> None:
    held = place.value
    changed = (*held[:index], value, *held[index + 1 :])
    place.write(held._make(changed) if hasattr(held, "_make") else type(held)(changed))


def _put_attribute(owner: Any, name: str, value: object) -> None:  # noqa: ANN401  # any object or class
    if isinstance(owner, enum.Enum):
        raise TypeError(f"{owner} is itself what code compares with")
    if value is GONE:
        delattr(owner, name)
        return
    now = vars(owner).get(name) if isinstance(owner, type) else getattr(owner, name, None)
    if now is value:
        return
    if isinstance(now, nn.Parameter) and isinstance(value, Tensor) and not isinstance(value, nn.Parameter):
        value = nn.Parameter(value.detach(), value.requires_grad)
    try:
        setattr(owner, name, value)
    except AttributeError:  # a frozen dataclass
        object.__setattr__(owner, name, value)


def _resize(container: Any, size: Any) -> None:  # noqa: ANN401  # a container, and its length or its keys
    """Give a list its length, or a dict the order of its keys; new members follow by their own names."""
    if isinstance(container, dict) and isinstance(size, list):
        members = {key: container[key] for key in size if key in container}
        if [*members] != [*container]:
            container.clear()
            for key, member in members.items():
                container[key] = member
    elif isinstance(container, list | deque) and isinstance(size, int):
        while len(container) > size:
            container.pop()
        container.extend([None] * (size - len(container)))
    else:
        raise TypeError(f"a {type(container).__name__} of another size")


def attributes_in(owner: object, names: Container[str] | None = None) -> dict[str, Any]:
    """Return the attributes of an object, those in slots too; of a module also what its parts have.

    With `names` only those.
    """
    kind: Any = type(owner)
    of_module = isinstance(owner, nn.Module)
    held = {
        name: value
        for name, value in getattr(owner, "__dict__", {}).items()
        if (names is None or name in names)
        and not (
            str(name).startswith("_dynamo") or name == "__orig_class__" or (of_module and name in OF_TORCH)
        )
    }
    for slot in slots_of(kind):
        if hasattr(owner, slot):
            held[slot] = getattr(owner, slot)
    for part in PARTS_OF_MODULES if of_module else ():
        held |= vars(owner).get(part) or {}
    return held if names is None else {name: value for name, value in held.items() if name in names}


@lru_cache(maxsize=4096)
def slots_of(kind: type) -> tuple[str, ...]:
    """Return the names of the slots that a class and its bases of no library add."""
    names: list[str] = []
    for base in kind.__mro__:
        slots = () if is_of_library(base.__module__) else vars(base).get("__slots__", ())
        names += (slots,) if isinstance(slots, str) else slots
    return tuple(name for name in names if name not in ("__dict__", "__weakref__"))


class Variable(NamedTuple):
    """A variable that a function reads: in a cell of its closure, or in a dict of globals."""

    name: str
    value: Any
    holder: CellType | dict[str, Any]

    def write(self, value: object) -> None:
        """Give the variable another value."""
        if isinstance(self.holder, CellType):
            self.holder.cell_contents = value
        else:
            _put(self.holder, self.name, value)


def variables_of(function: FunctionType) -> Iterator[Variable]:
    """Yield the variables of enclosing functions that have a value, then the globals that the code names."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield Variable(name, cell.cell_contents, cell)
        except ValueError:  # nothing is in it yet
            continue
    for name in names_in(function.__code__):
        if name in function.__globals__:
            yield Variable(name, function.__globals__[name], function.__globals__)


@lru_cache(maxsize=4096)
def names_in(code: CodeType) -> tuple[str, ...]:
    """Return the names of globals and attributes in a function's code, and in functions inside it."""
    inner = (names_in(constant) for constant in code.co_consts if isinstance(constant, CodeType))
    return tuple(dict.fromkeys(chain(code.co_names, *inner)))


def is_iterator(value: object) -> TypeIs[Iterator[object]]:
    """Return whether Python's own code runs on in a value; a class of a user is an object with attributes."""
    kind = type(value)
    of_python = kind.__module__ == "builtins" or kind.__module__ in sys.stdlib_module_names
    return of_python and hasattr(kind, "__next__") and not isinstance(value, io.IOBase)


def is_of_library(module: str) -> bool:
    """Return whether a module, by name, is Python's own or of a library whose state is not a user's."""
    top = module.partition(".")[0]
    return top in _LIBRARIES or top in sys.stdlib_module_names or top == "builtins"
