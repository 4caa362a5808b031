"""What a captured graph may have read: arguments, however nested, and attributes that its code names.

Of what the code itself stores, addresses mean nothing: each capture leaves its own. A dict of its state may
get keys, as a cache does. `state` has all that a run may write, whether the code names it or not.
"""

import dis
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from functools import cached_property, lru_cache
from itertools import islice
from types import CodeType, FunctionType
from typing import Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary, ref

from torch import Tensor, nn

from deepstack_harness.compile.members import StatePlace, attributes_in, places, variables_of
from deepstack_harness.compile.watch_facts import InputFacts, input_facts

T = TypeVar("T")
Facts = Mapping[str, InputFacts]
"""Facts of each input by its name: `x`, `parts['a']`, `self.factor`, `outer LIMIT`."""

_SELF, _OUTER = "self.", "outer "
"""Prefixes of the names of attributes, and of closed-over and global values."""
_DEEPEST, _MOST = 4, 500
"""Depth of nested containers, and number of inputs of one call, that are compared; more is not reported."""


def _nothing() -> None:
    return None


def _weakly(value: T | None) -> Callable[[], T | None]:
    """Return what gives a value for as long as somebody else holds it."""
    try:
        return _nothing if value is None else ref(value)
    except TypeError:  # an object of a class with slots
        return _nothing


@dataclass(frozen=True, eq=False)
class CapturedCode:
    """A callable that is captured: its function, the object that it belongs to, and what its code names.

    Neither is kept alive by this record. Without a function (no Python code), arguments have no names.
    """

    name: str
    key: object
    owner: Callable[[], object] = _nothing
    function: Callable[[], FunctionType | None] = _nothing
    """They return None where there is none, or it is gone."""

    @classmethod
    def of_callable(cls, code: object, name: str = "") -> "CapturedCode":
        """Return what is captured where `code` is called: a function, a method, or an object to be called."""
        if isinstance(code, cls):
            return code
        module = code if isinstance(code, nn.Module) and not name else None
        if module is not None and module in _OF_MODULES:
            return _OF_MODULES[module]
        owner = getattr(code, "__self__", None)
        function = getattr(code, "__func__", code)
        if not inspect.isroutine(code):  # an object; of a module, __call__ is torch's and forward its own
            owner = code
            function = getattr(type(code), "forward" if isinstance(code, nn.Module) else "__call__", None)
        function = inspect.unwrap(function) if callable(function) else None
        function = function if isinstance(function, FunctionType) else None
        plain = function.__qualname__ if function is not None else type(code).__name__
        of_owner = f"{type(owner).__name__}.{function.__name__}" if owner is not None and function else plain
        key = name or id(code if owner is None else owner)
        made = cls(name or of_owner, key, _weakly(owner), _weakly(function))
        if module is not None:
            _OF_MODULES[module] = made
        return made

    @property
    def where(self) -> str:
        """FILE:LINE of its code, empty where it has none."""
        function = self.function()
        code = function and function.__code__
        return f"{code.co_filename}:{code.co_firstlineno}" if code else ""

    def facts(
        self, args: Sequence[object], kwargs: Mapping[str, object], *, whole: bool
    ) -> dict[str, InputFacts]:
        """Return the facts of all that a call with these arguments reads; `whole` adds its submodules."""
        facts: dict[str, InputFacts] = {}
        for name, value in self._bound(args, kwargs).items():
            _note(facts, name, value)
        for name, value in self._attributes(whole=whole).items():
            members: dict[str, InputFacts] = {}
            _note(members, name, value)
            is_known = {fact.kind for fact in members.values()} <= _KINDS
            if is_known:
                facts |= members
            if isinstance(value, dict) or not is_known:  # a dict may grow; of objects only the container
                facts[name] = InputFacts(type(value).__name__)
        return facts

    def fingerprint(self, args: Sequence[object], kwargs: Mapping[str, object]) -> object:
        """Return what is equal only for two calls whose facts are equal, submodules aside.

        It is read in each replay: about 30 microseconds for two tensors, a module and four of its attributes.
        """
        return _print(args), _print(kwargs), _print(self._attributes(whole=False))

    def state(self) -> dict[str, InputFacts]:
        """Return the facts of all plain attributes of the object and its submodules, and of values around."""
        found = self._attributes(whole=False)
        for path, part in [("", self.owner()), *self._submodules()]:
            prefix = f"{_SELF}{path}." if path else _SELF
            found |= {f"{prefix}{name}": value for name, value in attributes_in(part).items()}
        facts: dict[str, InputFacts] = {}
        for name, value in found.items():
            if isinstance(value, _PLAIN):
                members: dict[str, InputFacts] = {}
                _note(members, name, value)
                facts |= members
        return facts

    def names_in_common(
        self, other: "CapturedCode", then: Facts, now: Facts, *, whole: bool
    ) -> Iterator[str]:
        """Yield the names that two calls are held by: all, or the arguments that both functions have."""
        for name in {**then, **now}:
            of_state = self.is_state(name)
            if self.function() is not other.function():
                if name in then and name in now and not of_state:
                    yield name
            elif (
                not of_state
                or (name in now and (name in then or "[" not in name))
                or (whole and name in then)
            ):
                yield name

    @staticmethod
    def is_state(name: str) -> bool:
        """Return whether this is the name of no argument: an attribute, a closed-over or global value."""
        return name.startswith((_SELF, _OUTER))

    def stores(self, name: str) -> bool:
        """Return whether the code itself stores the attribute of this name."""
        return name.startswith(_SELF) and name.partition("[")[0].rpartition(".")[2] in self._names.stored

    def reads_first(self, name: str) -> bool:
        """Return whether the code reads the attribute of this name before it stores it, if it does at all."""
        return name.startswith(_SELF) and name.rpartition(".")[2] in self._names.read_first

    def _bound(self, args: Sequence[object], kwargs: Mapping[str, object]) -> dict[str, object]:
        """Return the arguments by the names of parameters, with their defaults."""
        unnamed = {**{f"args[{i}]": value for i, value in enumerate(args)}, **kwargs}
        signature = self._signature
        if signature is None:
            return unnamed
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError:  # the call does not fit the signature: a wrapper changes arguments
            return unnamed
        bound.apply_defaults()
        arguments: dict[str, object] = {}
        for name, value in bound.arguments.items():
            kind = signature.parameters[name].kind
            if kind is inspect.Parameter.VAR_POSITIONAL:
                arguments |= {f"{name}[{i}]": member for i, member in enumerate(value)}
            elif kind is inspect.Parameter.VAR_KEYWORD:
                arguments |= value
            else:
                arguments[name] = value
        return arguments

    def _attributes(self, *, whole: bool) -> dict[str, object]:
        """Return the attributes, closed-over and global values that the code names, by name."""
        function: Any = self.function()
        if function is None:
            return {}
        # Globals that are plain: modules, functions and classes do not change.
        found: dict[str, object] = {
            f"{_OUTER}{variable.name}": variable.value
            for variable in variables_of(function)
            if isinstance(variable.value, _PLAIN)
        }
        if self.owner() is not None:
            found |= dict(_named(self.owner(), function, _SELF))
        for path, part in self._submodules() if whole else ():
            found |= dict(_named(part, type(part).forward, f"{_SELF}{path}."))
        return found

    def _submodules(self) -> Iterator[tuple[str, nn.Module]]:
        owner = self.owner()
        if isinstance(owner, nn.Module):
            yield from ((path, part) for path, part in owner.named_modules() if path)

    @cached_property
    def _names(self) -> "_Names":
        """The names in its code and in that of its submodules."""
        codes: list[tuple[Any, Any]] = [(type(self.owner()), _code_of(self.function()))]
        codes += [(type(part), _code_of(type(part).forward)) for _, part in self._submodules()]
        kinds = zip(*(_names_in(*code) for code in codes), strict=True)
        return _Names(*(frozenset().union(*names) for names in kinds))

    @cached_property
    def _signature(self) -> inspect.Signature | None:
        """That of its function without `self`; it stays when the function is gone."""
        function: Any = self.function()
        if function is None:
            return None
        if function not in _SIGNATURES:
            _SIGNATURES[function] = inspect.signature(function)
        parameters = list(_SIGNATURES[function].parameters.values())
        return inspect.Signature(parameters[1:] if self.owner() is not None else parameters)


_OF_MODULES: WeakKeyDictionary[nn.Module, CapturedCode] = WeakKeyDictionary()


_SIGNATURES: WeakKeyDictionary[FunctionType, inspect.Signature] = WeakKeyDictionary()


_PLAIN = (type(None), bool, int, float, str, Tensor, list, tuple, dict)


def _named(owner: object, function: object, prefix: str) -> Iterator[tuple[str, object]]:
    """Yield the attributes of an object that a function of its class names, or a method that it calls."""
    code: tuple[Any, Any] = type(owner), _code_of(function)
    for name, value in sorted(attributes_in(owner, _names_in(*code).all).items()):
        if isinstance(value, _PLAIN):
            yield f"{prefix}{name}", value


def _code_of(function: object) -> CodeType | None:
    return getattr(inspect.unwrap(function), "__code__", None) if callable(function) else None


class _Names(NamedTuple):
    """Names in the code of a function and of methods that it names; in that order they are used."""

    all: frozenset[str]
    stored: frozenset[str]
    read_first: frozenset[str]


@lru_cache(maxsize=4096)
def _names_in(owner_class: type, code: CodeType | None) -> _Names:
    """Return the names in the code of a function, in functions inside it, and in methods that it names."""
    names, stored, read_first = set[str](), set[str](), set[str]()

    def walk(part: CodeType) -> None:
        for op in dis.get_instructions(part):
            if isinstance(op.argval, CodeType):
                walk(op.argval)
            if op.opcode not in dis.hasname:
                continue
            name = op.argval
            if op.opname == "STORE_ATTR":
                stored.add(name)
            elif name not in names:
                read_first.add(name)
            if name not in names:
                names.add(name)
                member = inspect.getattr_static(owner_class, name, None)
                method = _code_of(member.fget if isinstance(member, property) else member)
                if method is not None:
                    walk(method)

    if code is not None:
        walk(code)
    return _Names(frozenset(names), frozenset(stored), frozenset(read_first))


def _inside(name: str, value: object) -> Iterator[StatePlace]:
    """Yield a value, and what containers, dataclasses and vLLM's IntermediateTensors in it hold."""
    return places([StatePlace(name, value)], _leads_on, whole=False)


def _leads_on(place: StatePlace) -> bool:
    value, depth, outer = place.value, 0, place.outer
    while outer is not None:
        depth, outer = depth + 1, outer.outer
    return depth < _DEEPEST and (isinstance(value, dict | list | tuple) or _is_record(value))


def _is_record(value: object) -> bool:
    """Return whether it is a dataclass, or vLLM's IntermediateTensors."""
    is_object = is_dataclass(value) and not isinstance(value, type)
    return is_object or isinstance(getattr(value, "tensors", None), dict)


def _note(facts: dict[str, InputFacts], name: str, value: object) -> None:
    """Add the facts of a value, and of the members of a container."""
    for place in islice(_inside(name, value), max(_MOST - len(facts), 0)):
        facts[place.path] = input_facts(place.value)


def sizes_of(value: object) -> object:
    """Return what is equal for two values of equal shapes, dtypes and numbers, wherever their tensors are."""
    return _print(value, layout=False)


def _print(value: object, depth: int = 0, *, layout: bool = True) -> object:
    """Return a value that can be hashed: equal ones have equal facts, addresses and strides if `layout`.

    What `_inside` yields is read here without places and paths, in a fourth of the time.
    """
    kind = type(value)
    if isinstance(value, Tensor):
        facts = kind, value.dtype, value.device, value.shape
        return (*facts, value.data_ptr(), value.stride()) if layout else facts
    if isinstance(value, bool | int | float | str):
        return kind, value
    if value is None or depth > _DEEPEST:
        return kind
    if kind is list or kind is tuple:
        items: Any = value
        return kind, tuple([_print(member, depth + 1, layout=layout) for member in items])
    if kind is dict or not isinstance(value, dict | list | tuple):
        members: Any = value if kind is dict else attributes_in(value) if _is_record(value) else {}
        pairs = [(repr(name), _print(member, depth + 1, layout=layout)) for name, member in members.items()]
    else:
        inside = _inside("", value)
        pairs = [(place.path, _print(place.value, _DEEPEST + 1, layout=layout)) for place in inside]
    return kind, tuple(pairs)


_KINDS = {kind.__name__ for kind in _PLAIN} | {"None", "tensor"}


def difference(then: InputFacts, now: InputFacts, *, copies: bool = False, pads: bool = False) -> str:
    """Return the aspect in which an input differs and that decides what a replay reads; empty for none.

    `copies` and `pads`: the inputs are copied into tensors of the callable's own, or into longer ones.
    """
    if then.kind != now.kind:
        return "presence" if {"None", "absent"} & {then.kind, now.kind} else "type"
    if then.kind != "tensor":
        return "value" if then.value != now.value else ""
    aspects = {
        "subclass": False,
        "dtype": False,
        "device": False,
        "shape": pads,
        "stride": copies,
        "address": copies,
    }
    held = (name for name, free in aspects.items() if not free)
    return next((name for name in held if getattr(then, name) != getattr(now, name)), "")
