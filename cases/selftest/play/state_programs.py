"""Regions that keep state in unusual places, each with a change of it between two calls.

Written from the text of the promises, before the code that walks state was changed.
"""

import collections
import contextvars
import enum
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn


class Changing(NamedTuple):
    """A region that multiplies by a scale of 1.0, and a change that makes it 3.0.

    `name` is how a finding names the state, "" where the compiled region reads the new value. `why` are words
    of the reason where nothing can be judged.
    """

    make: Callable[[], Callable[..., Any]]
    change: Callable[[Any], object]
    name: str
    why: str = ""


class Holds(nn.Module):
    """Scales by what `read` finds in `self.held`."""

    def __init__(self, held: object, read: Callable[[Any], Any]) -> None:
        super().__init__()
        self.held = held
        self.read = read

    def forward(self, x: Tensor) -> Tensor:
        scaled: Tensor = x * self.read(self.held)
        return scaled


class Slots:
    __slots__ = ("scale",)

    def __init__(self, scale: float = 1.0) -> None:
        self.scale = scale


@dataclass(slots=True)
class Fields:
    scale: float = 1.0


class Plain:
    def __init__(self, scale: float = 1.0) -> None:
        self.scale = scale


class Private:
    def __init__(self) -> None:
        self._scale = 1.0

    @property
    def scale(self) -> float:
        return self._scale


class OfTheClass:
    scale = 1.0


class Mode(enum.Enum):
    ONE = 1.0
    THREE = 3.0


class Deep(nn.Module):
    """Eight modules, one in the other; the innermost has the scale."""

    def __init__(self, depth: int = 8) -> None:
        super().__init__()
        self.scale = 1.0
        self.inner = Deep(depth - 1) if depth else None

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x * self.scale if self.inner is None else self.inner(x)
        return out


def innermost(region: Deep) -> Deep:
    return region if region.inner is None else innermost(region.inner)


settings = types.ModuleType("state_programs_settings")
settings.scale = 1.0  # type: ignore[attr-defined]
sys.modules["state_programs_settings"] = settings


def of_a_module(x: Tensor) -> Tensor:
    scaled: Tensor = x * settings.scale
    return scaled


CONTEXT = contextvars.ContextVar("CONTEXT", default=1.0)


def of_a_context(x: Tensor) -> Tensor:
    return x * CONTEXT.get()


def enclosing() -> Callable[[Tensor], Tensor]:
    scale = 1.0

    def scaled(x: Tensor) -> Tensor:
        return x * scale

    def become(value: float) -> None:
        nonlocal scale
        scale = value

    scaled.become = become  # type: ignore[attr-defined]
    return scaled


def with_keyword(x: Tensor, *, scales: list[float] = [1.0]) -> Tensor:  # noqa: B006  # what is tested
    return x * scales[0]


class OnTarget(nn.Module):
    """Reads through a weak reference to what it holds too."""

    def __init__(self) -> None:
        super().__init__()
        self.target = Plain()
        self.seen = weakref.ref(self.target)

    def forward(self, x: Tensor) -> Tensor:
        target = self.seen()
        assert target is not None
        return x * target.scale


class ById(nn.Module):
    """Finds its scale by the address of an object that it holds."""

    def __init__(self) -> None:
        super().__init__()
        self.key = Plain()
        self.scales = {id(self.key): 1.0}

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scales[id(self.key)]


class Counts(nn.Module):
    """Multiplies by the next number of an iterator."""

    def __init__(self, numbers: Iterator[float]) -> None:
        super().__init__()
        self.numbers = numbers

    def forward(self, x: Tensor) -> Tensor:
        return x * next(self.numbers)


class Draws(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(3)
        self.scale = 1.0

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale + torch.rand(x.shape, generator=self.generator)


def assigning(name: str, value: object = 3.0) -> Callable[[Any], object]:
    return lambda region: setattr(region.held, name, value)


def locked() -> Plain:
    held = Plain()
    held.lock = threading.Lock()  # type: ignore[attr-defined]
    return held


def with_file() -> Plain:
    held = Plain()
    held.file = sys.__stderr__  # type: ignore[attr-defined]
    return held


def local() -> threading.local:
    held = threading.local()
    held.scale = 1.0
    return held


def scale_of(held: Any) -> Any:  # noqa: ANN401  # an object with a scale
    return held.scale


def first_of(held: Any) -> Any:  # noqa: ANN401  # a sequence
    return held[0]


def replacing(region: Any) -> None:  # noqa: ANN401
    region.held[0] = 3.0


STATE = {
    "slots": Changing(lambda: Holds(Slots(), scale_of), assigning("scale"), "self.held.scale"),
    "dataclass with slots": Changing(
        lambda: Holds(Fields(), scale_of), assigning("scale"), "self.held.scale"
    ),
    "property": Changing(lambda: Holds(Private(), scale_of), assigning("_scale"), "self.held._scale"),
    "attribute of a class": Changing(
        lambda: Holds(OfTheClass(), scale_of),
        lambda region: setattr(type(region.held), "scale", 3.0),
        "self.held.scale",
    ),
    "numpy scalar": Changing(
        lambda: Holds(np.float32(1.0), float),
        lambda region: setattr(region, "held", np.float32(3.0)),
        "",
    ),
    "namespace": Changing(
        lambda: Holds(types.SimpleNamespace(scale=1.0), scale_of), assigning("scale"), "self.held.scale"
    ),
    "deque": Changing(lambda: Holds(collections.deque([1.0]), first_of), replacing, "self.held[0]"),
    "OrderedDict": Changing(
        lambda: Holds(collections.OrderedDict(a=1.0, b=3.0), lambda held: next(iter(held.values()))),
        lambda region: region.held.move_to_end("a"),
        "self.held (its keys)",
    ),
    "defaultdict": Changing(
        lambda: Holds(collections.defaultdict(lambda: 1.0), lambda held: held.get("a", 1.0)),
        lambda region: region.held.update(a=3.0),
        "self.held",
    ),
    "ChainMap": Changing(
        lambda: Holds(collections.ChainMap({"a": 1.0}), lambda held: held.maps[0]["a"]),
        lambda region: region.held.maps[0].update(a=3.0),
        "self.held.maps[0]['a']",
    ),
    "enum": Changing(
        lambda: Holds(Mode.ONE, lambda held: held.value),
        lambda region: setattr(region, "held", Mode.THREE),
        "self.held",
    ),
    "frozenset": Changing(
        lambda: Holds(frozenset({1}), lambda held: 3.0 if 3 in held else 1.0),
        lambda region: setattr(region, "held", frozenset({3})),
        "self.held",
    ),
    "deep": Changing(Deep, lambda region: setattr(innermost(region), "scale", 3.0), ".scale"),
    "module": Changing(lambda: of_a_module, lambda _: setattr(settings, "scale", 3.0), "scale"),
    "closure": Changing(enclosing, lambda region: region.become(3.0), "scale"),
    "keyword default": Changing(
        lambda: with_keyword,
        lambda _: (with_keyword.__kwdefaults__ or {})["scales"].__setitem__(0, 3.0),
        "scales[0]",
    ),
    "weak reference": Changing(
        OnTarget, lambda region: setattr(region.target, "scale", 3.0), "self.target.scale"
    ),
    "ids as keys": Changing(ById, lambda _: None, ""),
    "lock": Changing(lambda: Holds(locked(), scale_of), assigning("scale"), "self.held.scale"),
    "file": Changing(lambda: Holds(with_file(), scale_of), assigning("scale"), "self.held.scale"),
    "thread-local": Changing(lambda: Holds(local(), scale_of), assigning("scale"), "self.held.scale"),
    "context": Changing(lambda: of_a_context, lambda _: CONTEXT.set(3.0), "", "ContextVar"),
    "torch.Generator": Changing(Draws, lambda region: setattr(region, "scale", 3.0), "", "Unsupported"),
}
