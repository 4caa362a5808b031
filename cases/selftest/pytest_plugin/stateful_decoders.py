"""Decoders that keep state from call to call; `DECODERS` has the arms under which each is right and wrong.

A wrong one leaves another output or another state than it does uncompiled.
"""

import random
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from deepstack_harness.contract.protocols import BufferFactory
from deepstack_harness.models.reference import ReferenceBuffer

HIDDEN, LEVELS = 8, 2
Payload = tuple[Tensor, ...] | None


class Base(nn.Module):
    """Decoder that adds its payload to a linear layer's output; hidden (n, 8), levels (n, 8) -> (n, 8)."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.weight = nn.Parameter(torch.randn(HIDDEN, HIDDEN, generator=generator) / 3)
        self.eval()

    def add(self, hidden: Tensor, payload: Payload) -> Tensor:
        out = hidden @ self.weight
        for level in payload or ():
            out = out + level
        return out


class CountsSets(Base):
    """It scales by the sets that the buffer has told it and that no clear has ended."""

    live = 0

    def forward(self, hidden: Tensor, positions: Tensor, payload: Payload) -> Tensor:
        return self.add(hidden, payload) * (1 + self.live)


class CountsSteps(Base):
    """A scale that depends on the number of the call, a Python int."""

    def __init__(self) -> None:
        super().__init__()
        self.step = 0

    def forward(self, hidden: Tensor, positions: Tensor, payload: Payload) -> Tensor:
        self.step += 1
        return self.add(hidden, payload) / self.step


class CountsStepsInATensor(Base):
    """The same, with the number in a buffer of the module that it adds to in place."""

    steps: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, hidden: Tensor, positions: Tensor, payload: Payload) -> Tensor:
        self.steps.add_(1)
        return self.add(hidden, payload) / self.steps


class RunningMean(Base):
    """A running mean of its inputs, replaced by a new tensor at every call."""

    def __init__(self) -> None:
        super().__init__()
        self.mean = torch.zeros(HIDDEN)

    def forward(self, hidden: Tensor, positions: Tensor, payload: Payload) -> Tensor:
        self.mean = 0.5 * self.mean + 0.5 * hidden.mean(0)
        return self.add(hidden, payload) - self.mean


class Cache(Base):
    """Rows of earlier calls in storage that is made in the constructor, in a dict in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[dict[str, Tensor]] = [{"rows": torch.zeros(16, HIDDEN)}]

    def forward(self, hidden: Tensor, positions: Tensor, payload: Payload) -> Tensor:
        out = self.add(hidden, payload) + self.kept[0]["rows"].sum(0)
        self.kept[0]["rows"][: hidden.size(0)].add_(hidden)
        return out


class LazyCache(Base):
    """The rows of the first call, made in the first call."""

    def __init__(self) -> None:
        super().__init__()
        self.first: Tensor | None = None

    def forward(self, hidden: Tensor, positions: Tensor, payload: Payload) -> Tensor:
        if self.first is None:
            self.first = hidden.sum(0) + 1
        return self.add(hidden, payload) * self.first


class ListOfSizes(Base):
    """A Python list with an entry for each call."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    def forward(self, hidden: Tensor, positions: Tensor, payload: Payload) -> Tensor:
        self.sizes.append(1)
        return self.add(hidden, payload) * len(self.sizes)


class Dropout(Base):
    """Dropout, in training mode."""

    def __init__(self) -> None:
        super().__init__()
        self.train()

    def forward(self, hidden: Tensor, positions: Tensor, payload: Payload) -> Tensor:
        return nn.functional.dropout(self.add(hidden, payload), 0.5, self.training)


class Training(Dropout):
    """Dropout in training mode alone, which the buffer switches on at a set and off at a clear."""

    def __init__(self) -> None:
        super().__init__()
        self.eval()


class ReplacedParameter(Base):
    """A parameter that the buffer replaces at a set."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(HIDDEN))

    def forward(self, hidden: Tensor, positions: Tensor, payload: Payload) -> Tensor:
        return self.add(hidden, payload) * self.scale


class Owner:
    """Something that a decoder knows by a weak reference."""

    scale = 1.0


class WeakScale(Base):
    """A scale of an object that the decoder refers to weakly, and that the buffer changes."""

    def __init__(self) -> None:
        super().__init__()
        self.owner = Owner()
        self.weak = weakref.ref(self.owner)

    def forward(self, hidden: Tensor, positions: Tensor, payload: Payload) -> Tensor:
        owner = self.weak()
        assert owner is not None
        return self.add(hidden, payload) * owner.scale


CALLS = [0]


class GlobalCount(Base):
    """A count in a list of the module that it is written in."""

    def forward(self, hidden: Tensor, positions: Tensor, payload: Payload) -> Tensor:
        CALLS[0] += 1
        return self.add(hidden, payload) * CALLS[0]


class ClassCount(Base):
    """A count of the class."""

    calls = 0

    def forward(self, hidden: Tensor, positions: Tensor, payload: Payload) -> Tensor:
        ClassCount.calls += 1
        return self.add(hidden, payload) * ClassCount.calls


class ForgetsWhenCompiled(CountsStepsInATensor):
    """Its output is right in every arm, and the number of its calls is not: compiled it does not count."""

    def forward(self, hidden: Tensor, positions: Tensor, payload: Payload) -> Tensor:
        if not torch.compiler.is_compiling():
            self.steps.add_(1)
        return self.add(hidden, payload)


class DrawsWhenCompiled(Base):
    """Its output is right in every arm; compiled it draws a random number that nobody needs."""

    def forward(self, hidden: Tensor, positions: Tensor, payload: Payload) -> Tensor:
        out = self.add(hidden, payload)
        return out + 0 * torch.rand(HIDDEN) if torch.compiler.is_compiling() else out


class Faint(Base):
    """Its payload hardly matters: a thousand-millionth of it is added."""

    def forward(self, hidden: Tensor, positions: Tensor, payload: Payload) -> Tensor:
        return self.add(hidden, None) + 1e-9 * sum(payload or ())


class FaintLoses(Faint):
    """The same, and compiled it loses its payload."""

    def forward(self, hidden: Tensor, positions: Tensor, payload: Payload) -> Tensor:
        if torch.compiler.is_compiling():
            return self.add(hidden, None)
        return super().forward(hidden, positions, payload)


class Tiny(Base):
    """Its outputs are a thousand-millionth of others'."""

    def forward(self, hidden: Tensor, positions: Tensor, payload: Payload) -> Tensor:
        return 1e-9 * self.add(hidden, payload)


class TinyLoses(Tiny):
    """The same, and compiled it loses a thousandth of its payload."""

    def forward(self, hidden: Tensor, positions: Tensor, payload: Payload) -> Tensor:
        part = 0.999 if torch.compiler.is_compiling() else 1.0
        return 1e-9 * self.add(hidden, tuple(part * level for level in payload or ()))


class Drawn(Base):
    """A number that the buffer draws at each set and clear, from a generator of the decoder or of Python."""

    def __init__(self) -> None:
        super().__init__()
        self.draws = np.random.default_rng(0)
        self.scale = torch.ones(())

    def forward(self, hidden: Tensor, positions: Tensor, payload: Payload) -> Tensor:
        return self.add(hidden, payload) * self.scale


def closure_count(_: int = 0) -> nn.Module:
    """Return a decoder around a function that counts its calls in a closure."""
    calls = 0

    class Closure(Base):
        def forward(self, hidden: Tensor, positions: Tensor, payload: Payload) -> Tensor:
            nonlocal calls
            calls += 1
            return self.add(hidden, payload) * calls

    return Closure()


Told = Callable[[Any, int], None]
"""What a set (1) and a clear (0) tell a decoder."""


def telling(decoder: nn.Module, told: Told) -> BufferFactory:
    """Return a factory of right buffers that also tell the decoder of each set and clear."""

    class Telling(ReferenceBuffer):
        def set(self, payload: Tensor) -> None:
            super().set(payload)
            told(decoder, 1)

        def clear(self, tokens: int) -> None:
            super().clear(tokens)
            told(decoder, 0)

    return Telling


def counts(decoder: CountsSets, is_set: int) -> None:
    decoder.live = is_set


def trains(decoder: nn.Module, is_set: int) -> None:
    decoder.train(bool(is_set))


def replaces(decoder: ReplacedParameter, is_set: int) -> None:
    decoder.scale = nn.Parameter(torch.full((HIDDEN,), 1.0 + is_set))


def owns(decoder: WeakScale, is_set: int) -> None:
    decoder.owner.scale = 1.0 + is_set


def draws(decoder: Drawn, is_set: int) -> None:
    decoder.scale.fill_(decoder.draws.random())


def rolls(decoder: Drawn, is_set: int) -> None:
    decoder.scale.fill_(random.random())


DROPPED, STOCK = "eager/drop_all", "eager/stock"


class Stateful(NamedTuple):
    """A decoder, what its buffer tells it, and the arms under which it is right and wrong."""

    make: Callable[[], nn.Module]
    right: tuple[str, ...] = ()
    wrong: tuple[str, ...] = ()
    told: Told = lambda *_: None
    state: str = ""
    """A part of its state that is told."""


DECODERS = {
    "count that set and clear change": Stateful(CountsSets, (STOCK,), (DROPPED,), counts, ".live"),
    "count of the calls": Stateful(CountsSteps, (STOCK,), (DROPPED,), state=".step"),
    "count in a tensor": Stateful(CountsStepsInATensor, (STOCK, DROPPED), state=".steps"),
    "running mean": Stateful(RunningMean, (STOCK, DROPPED), state=".mean"),
    "rows in a nested container": Stateful(Cache, (STOCK, DROPPED), state=".kept[0]['rows']"),
    "rows that the first call makes": Stateful(LazyCache, (STOCK,), (DROPPED,), state=".first"),
    "list that grows": Stateful(ListOfSizes, (STOCK,), (DROPPED,), state=".sizes[0]"),
    "dropout": Stateful(Dropout, (STOCK, DROPPED), state="torch's random generator"),
    "training that set switches on": Stateful(Training, (STOCK,), (DROPPED,), trains, ".training"),
    "generator of Python": Stateful(Drawn, (STOCK, DROPPED), (), rolls, "Python's random generator"),
    "parameter that set replaces": Stateful(ReplacedParameter, (STOCK, DROPPED), (), replaces, ".scale"),
    "object behind a weak reference": Stateful(WeakScale, (STOCK,), (DROPPED,), owns, ".owner.scale"),
    "count of the module": Stateful(GlobalCount, (STOCK,), (DROPPED,), state="CALLS[0]"),
    "count of the class": Stateful(ClassCount, (STOCK,), (DROPPED,), state="ClassCount.calls"),
    "count in a closure": Stateful(closure_count, (STOCK,), (DROPPED,), state="calls"),
    "generator of numpy": Stateful(Drawn, (STOCK, DROPPED), (), draws, ".draws"),
    "count that compiling skips": Stateful(ForgetsWhenCompiled, (), (STOCK, DROPPED), state=".steps"),
    "draw that compiling adds": Stateful(DrawsWhenCompiled, (), (STOCK,), state="torch's random generator"),
    "payload that hardly matters": Stateful(Faint, (STOCK, DROPPED)),
    "payload that hardly matters, lost": Stateful(FaintLoses, (), (STOCK,)),
    "output that is tiny": Stateful(Tiny, (STOCK, DROPPED)),
    "output that is tiny, a thousandth lost": Stateful(TinyLoses, (), (STOCK,)),
}
