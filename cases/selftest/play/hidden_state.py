"""Regions whose state hides: in descriptors, caches, registries, classes; in keys, views, references.

Each multiplies by a number that its Python finds there: after a change a graph has the old one (I1). Where
the number is a tensor that is written in place, a graph reads the new one, and nothing breaks.
"""

import collections
import contextvars
import enum
import fractions
import functools
import itertools
import queue
import threading
import types
import weakref
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import numpy as np
from torch import Tensor

from cases.selftest.play.state_programs import Holds, scale_of


class Hidden(NamedTuple):
    """What makes a region with a scale, a change of the scale to 3.0, and what a finding names.

    `why` are words of the reason where nothing can be judged. `holds` is False where the scale is no value
    that the caller gives, so that no tensor can be in its place.
    """

    make: Callable[[Any], Callable[..., Any]]
    change: Callable[[Any], object]
    name: str = ""
    why: str = ""
    holds: bool = True


class Thing:
    def __init__(self, scale: object) -> None:
        self.scale = scale

    def get(self) -> object:
        return self.scale


class OfEach:
    """An attribute whose values are in a dictionary of weak keys."""

    def __init__(self) -> None:
        self.of = weakref.WeakKeyDictionary[Any, Any]()

    def __get__(self, owner: object, kind: type | None = None) -> object:
        return self.of[owner]

    def __set__(self, owner: object, value: object) -> None:
        self.of[owner] = value


class Described:
    scale = OfEach()

    def __init__(self, scale: object) -> None:
        self.scale = scale


class ByName:
    def __init__(self, scale: object) -> None:
        self._values = {"scale": scale}

    def __getattr__(self, name: str) -> object:
        return self.__dict__["_values"][name]


class Meta(type):
    scale = 1.0


class OfMeta(metaclass=Meta):
    pass


class Base:
    table: ClassVar[dict[str, Any]] = {}


class Derived(Base):
    def __init__(self, scale: object) -> None:
        self.table["scale"] = scale


class Registered:
    registry: ClassVar[dict[int, Any]] = {}

    def __init__(self, scale: object) -> None:
        self.registry[id(self)] = scale

    @property
    def scale(self) -> object:
        return self.registry[id(self)]


class Level(enum.Enum):
    LOW = "low"


class Number(float):
    extra: object


class Slotted:
    __slots__ = ("scale",)

    def __init__(self, scale: Any) -> None:  # noqa: ANN401  # a number or a tensor
        self.scale = np.float64(scale)


LEVELS: dict[Level, Any] = {}
SOURCE: dict[str, Any] = {}
CURRENT = contextvars.ContextVar("CURRENT", default=Thing(1.0))  # noqa: B039  # what is tested
COUNT = itertools.count(1.0)
MODULE = types.ModuleType("hidden_settings")


@functools.lru_cache
def remembered() -> Any:  # noqa: ANN401  # a number or a tensor
    return SOURCE["scale"]


@functools.singledispatch
def dispatched(_: object) -> float:
    return 1.0


def by_level(scale: object) -> Holds:
    LEVELS[Level.LOW] = scale
    return Holds(Level.LOW, lambda level: LEVELS[level])


def by_cache(scale: object) -> Callable[[Tensor], Tensor]:
    SOURCE["scale"] = scale
    remembered.cache_clear()
    return lambda x: x * remembered()


def fill_cache(_: object) -> None:
    SOURCE["scale"] = 3.0
    remembered.cache_clear()


def by_context(_: object) -> Callable[[Tensor], Tensor]:
    def region(x: Tensor) -> Tensor:
        return x * CURRENT.get().scale  # type: ignore[operator]

    return region


def by_module(scale: object) -> Callable[[Tensor], Tensor]:
    MODULE.inner = types.SimpleNamespace(values=[{"scale": scale}])  # type: ignore[attr-defined]
    return lambda x: x * MODULE.inner.values[0]["scale"]


def by_cell(scale: Any) -> Callable[[Tensor], Tensor]:  # noqa: ANN401  # a number or a tensor
    def region(x: Tensor) -> Tensor:
        return x * scale  # type: ignore[no-any-return]

    def become(value: object) -> None:
        nonlocal scale
        scale = value

    region.become = become  # type: ignore[attr-defined]
    return region


def by_default(scale: object) -> Callable[[Tensor], Tensor]:
    def region(x: Tensor, thing: Thing = Thing(scale)) -> Tensor:  # noqa: B008  # what is tested
        return x * thing.scale  # type: ignore[operator]

    return region


def scaled(x: Tensor, *, scale: float) -> Tensor:
    return x * scale


def number(scale: object) -> Number:
    made = Number(1.0)
    made.extra = scale
    return made


def queued(scale: object) -> Holds:
    held = queue.Queue[Any]()
    held.put(scale)
    return Holds(held, lambda held: held.queue[0])


def weak_keys(scale: object) -> Holds:
    thing = Thing(None)
    return Holds((thing, weakref.WeakKeyDictionary({thing: scale})), lambda held: held[1][held[0]])


def view_of(make: Callable[[dict[str, Any]], Any], read: Callable[[Any], Any], scale: object) -> Holds:
    held = {"a": scale}
    return Holds((held, make(held)), lambda both: read(both[1]))


def first(members: Any) -> Any:  # noqa: ANN401  # an iterable
    return next(iter(members))


def of_a(held: Any) -> Any:  # noqa: ANN401  # a mapping
    return held["a"]


def assign(*names: str) -> Callable[[Any], object]:
    """Return a change of an attribute at the end of these names."""

    def change(region: Any) -> None:  # noqa: ANN401
        for name in names:
            region = getattr(region, name)
        region.scale = 3.0

    return change


HIDDEN = {
    "descriptor": Hidden(lambda s: Holds(Described(s), scale_of), assign("held"), "self.held.scale.of.data["),
    "__getattr__": Hidden(
        lambda s: Holds(ByName(s), scale_of), lambda r: r.held._values.update(scale=3.0),
        "self.held._values['scale']",
    ),
    "metaclass": Hidden(
        lambda _: Holds(OfMeta, scale_of), lambda _: setattr(Meta, "scale", 3.0), "scale", holds=False
    ),
    "dictionary of a base class": Hidden(
        lambda s: Holds(Derived(s), lambda held: held.table["scale"]), lambda _: Base.table.update(scale=3.0),
        "self.held.table['scale']",
    ),
    "ids in a class": Hidden(
        lambda s: Holds(Registered(s), scale_of), lambda r: r.held.registry.update({id(r.held): 3.0}),
        "self.held.registry[",
    ),
    "table of an enum": Hidden(by_level, lambda _: LEVELS.update({Level.LOW: 3.0}), "LEVELS["),
    "number with an attribute": Hidden(
        lambda s: Holds(number(s), lambda held: held.extra), lambda r: setattr(r.held, "extra", 3.0),
        "self.held.extra",
    ),
    "cache of a function": Hidden(by_cache, fill_cache, why="between two uncompiled runs"),
    "generic function": Hidden(
        lambda _: lambda x: x * dispatched("text"), lambda _: dispatched.register(str, lambda _: 3.0),
        why="between two uncompiled runs", holds=False,
    ),
    "object in a context": Hidden(
        by_context, lambda _: setattr(CURRENT.get(), "scale", 3.0), why="Dynamo", holds=False
    ),
    "variable of two functions": Hidden(by_cell, lambda r: r.become(3.0), "scale"),
    "object by default": Hidden(by_default, lambda r: assign()(r.__defaults__[0]), "thing.scale"),
    "bound method that is held": Hidden(
        lambda s: Holds(Thing(s).get, lambda held: held()), lambda r: assign("__self__")(r.held),
        "self.held.scale",
    ),
    "keyword of a partial": Hidden(
        lambda s: functools.partial(scaled, scale=s), lambda r: r.keywords.update(scale=3.0), "scale"
    ),
    "argument of a partial": Hidden(
        lambda s: Holds(functools.partial(getattr, Thing(s), "scale"), lambda held: held()),
        lambda r: assign()(r.held.args[0]), "self.held.args[0].scale",
    ),
    "values of a dictionary": Hidden(
        functools.partial(view_of, dict.values, first), lambda r: r.held[0].update(a=3.0), why="tp_iter"
    ),
    "proxy of a dictionary": Hidden(
        functools.partial(view_of, types.MappingProxyType, of_a), lambda r: r.held[0].update(a=3.0),
        "self.held[0]['a']",
    ),
    "Counter": Hidden(
        lambda s: Holds(collections.Counter(a=s), of_a), lambda r: r.held.update(a=2.0), "self.held['a']"
    ),
    "UserDict": Hidden(
        lambda s: Holds(collections.UserDict(a=s), of_a), lambda r: r.held.update(a=3.0),
        "self.held.data['a']",
    ),
    "nested mappings": Hidden(
        lambda s: Holds({"a": {("b", 1): [{"c": s}]}}, lambda held: held["a"]["b", 1][0]["c"]),
        lambda r: r.held["a"]["b", 1][0].update(c=3.0), "self.held['a'][('b', 1)][0]['c']",
    ),
    "object as a key": Hidden(
        lambda s: Holds({Thing(s): 0}, lambda held: first(held).scale), lambda r: assign()(first(r.held)),
        ".scale",
    ),
    "set of objects": Hidden(
        lambda s: Holds({Thing(s)}, lambda held: first(held).scale), lambda r: assign()(first(r.held)),
        "self.held[0].scale",
    ),
    "queue": Hidden(queued, lambda r: r.held.queue.__setitem__(0, 3.0), "self.held.queue[0]"),
    "weak keys": Hidden(weak_keys, lambda r: r.held[1].update({r.held[0]: 3.0}), "self.held[1].data["),
    "event": Hidden(
        lambda _: Holds(threading.Event(), lambda held: 3.0 if held.is_set() else 1.0),
        lambda r: r.held.set(), "self.held._flag", holds=False,
    ),
    "module that is made": Hidden(
        by_module, lambda _: MODULE.inner.values[0].update(scale=3.0), "inner.values[0]['scale']"
    ),
    "fraction": Hidden(
        lambda _: Holds(fractions.Fraction(1), float), lambda r: setattr(r, "held", fractions.Fraction(3)),
        "self.held", holds=False,
    ),
    "array of objects": Hidden(
        lambda s: Holds(np.array([s], dtype=object), first), lambda r: r.held.__setitem__(0, 3.0),
        why="numpy", holds=False,
    ),
    "numpy scalar in a slot": Hidden(  # a graph has it as an input, and reads the new one
        lambda s: Holds(Slotted(s), lambda held: float(held.scale)),
        lambda r: setattr(r.held, "scale", np.float64(3.0)), holds=False,
    ),
    "cycle of numbers": Hidden(
        lambda _: Holds(itertools.cycle([1.0, 3.0]), next), lambda r: next(r.held),
        why="self.held is a cycle", holds=False,
    ),
    "count of the module": Hidden(
        lambda _: lambda x: x * next(COUNT), lambda _: next(COUNT), "COUNT", holds=False
    ),
}  # fmt: skip
