"""Decoders that keep state from call to call, and the buffers that change it; also under `compile_arms`.

    @decoder("I1", ".step", step=0)
    def count_of_the_calls(self, hidden):
        self.step += 1
        return 1 / self.step

The function makes what the output is multiplied by. What starts as a function is called with the decoder.
"""

import random
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from cases.specimens.kit import Made, specimen
from deepstack_harness import Call
from deepstack_harness.contract.protocols import BufferFactory
from deepstack_harness.models.reference import ReferenceBuffer

HIDDEN, LEVELS = 8, 2
DROPPED, STOCK = "eager/drop_all", "eager/stock"
Payload = tuple[Tensor, ...] | None
Decoding = Any
"""A decoder with the attributes that it starts with."""
Multiplier = Any
"""A tensor or a number, made of attributes of a decoder."""
Factor = Callable[[Any, Tensor], Multiplier]
Change = Callable[[Any, int], object]
"""What a set (1) and a clear (0) do to a decoder."""


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


@dataclass(frozen=True)
class Decoder:
    """A decoder with its state, a part of which is reported as `state`, and what its buffer does to it."""

    make: Callable[[], Any]
    state: str
    change: Change

    def buffer(self, decoder: nn.Module) -> BufferFactory:
        """Return a factory of right buffers that also change the decoder at each set and clear."""
        change = self.change

        class Changing(ReferenceBuffer):
            def set(self, payload: Tensor) -> None:
                super().set(payload)
                change(decoder, 1)

            def clear(self, tokens: int) -> None:
                super().clear(tokens)
                change(decoder, 0)

        return Changing

    def program(self) -> Made:
        """Return the decoder and its steps: a profile run, and three sets with calls."""
        steps: list[Any] = [_call(16, 0)]
        for seed, tokens in enumerate((16, 9, 16), 1):
            steps += [lambda region: self.change(region, 1), _call(tokens, seed)]
        return self.make(), [*steps, lambda region: self.change(region, 0), _call(16, 4)]


def _call(tokens: int, seed: int) -> Call:
    hidden, *levels = torch.randn(LEVELS + 1, tokens, HIDDEN, generator=torch.Generator().manual_seed(seed))
    return Call(hidden, torch.zeros(3, tokens, dtype=torch.int64), tuple(levels))


DECODERS: dict[str, Decoder] = {}


def decoder(
    breaks: str,
    state: str,
    arms: str = DROPPED,
    names: str = "",
    change: Change = lambda *_: None,
    **starts: Any,
) -> Callable[[Factor], Callable[[], Made]]:
    """Enter a factor as a decoder and as a specimen; `starts` are its attributes."""

    def enter(factor: Factor) -> Callable[[], Made]:
        class Stateful(Base):
            factor: ClassVar[Factor]

            def __init__(self) -> None:
                super().__init__()
                for name, value in starts.items():
                    setattr(self, name, value(self) if callable(value) else value)

            def forward(self, hidden: Tensor, positions: Tensor, payload: Payload) -> Tensor:
                out: Tensor = self.add(hidden, payload) * self.factor(hidden)
                return out

        Stateful.factor = factor
        made = DECODERS[factor.__name__] = Decoder(Stateful, state, change)

        def program() -> Made:
            return made.program()

        program.__name__ = factor.__name__
        return specimen(breaks, names or state.lstrip("."), arms)(program)

    return enter


def sets(attribute: str, value: Callable[[int], object]) -> Change:
    """Return a change that assigns an attribute of the decoder."""
    return lambda decoder, is_set: setattr(decoder, attribute, value(is_set))


@decoder("I1", ".live", change=sets("live", int), live=0)
def count_that_sets_and_clears_change(self: Decoding, hidden: Tensor) -> Multiplier:
    return 1 + self.live


@decoder("I1", ".step", step=0)
def count_of_the_calls(self: Decoding, hidden: Tensor) -> Multiplier:
    self.step += 1
    return 1 / self.step


@decoder("", ".steps", steps=lambda _: nn.Buffer(torch.zeros(())))
def count_in_a_tensor(self: Decoding, hidden: Tensor) -> Multiplier:
    self.steps.add_(1)
    return 1 / self.steps


@decoder("", ".mean", mean=lambda _: torch.zeros(HIDDEN))
def running_mean_in_new_tensors(self: Decoding, hidden: Tensor) -> Multiplier:
    self.mean = 0.5 * self.mean + 0.5 * hidden.mean(0)
    return self.mean


@decoder("", ".kept[0]['rows']", kept=lambda _: [{"rows": torch.zeros(16, HIDDEN)}])
def rows_in_a_nested_container(self: Decoding, hidden: Tensor) -> Multiplier:
    rows = self.kept[0]["rows"]
    factor = 1 + rows.sum(0)
    rows[: hidden.size(0)].add_(hidden)
    return factor


@decoder("I1", ".first", first=None)
def rows_that_the_first_call_makes(self: Decoding, hidden: Tensor) -> Multiplier:
    if self.first is None:
        self.first = hidden.sum(0) + 1
    return self.first


@decoder("I1", ".sizes[0]", names="sizes", sizes=lambda _: [])
def list_that_grows(self: Decoding, hidden: Tensor) -> Multiplier:
    self.sizes.append(1)
    return len(self.sizes)


@decoder("", "torch's random generator", training=True)
def dropout(self: Decoding, hidden: Tensor) -> Multiplier:
    return nn.functional.dropout(torch.ones(HIDDEN), 0.5, self.training)


@decoder("I1", ".training", change=sets("training", bool))
def dropout_that_sets_switch_on(self: Decoding, hidden: Tensor) -> Multiplier:
    return nn.functional.dropout(torch.ones(HIDDEN), 0.5, self.training)


@decoder(
    "",
    ".scale",
    change=sets("scale", lambda is_set: nn.Parameter(torch.full((HIDDEN,), 1.0 + is_set))),
    scale=lambda _: nn.Parameter(torch.ones(HIDDEN)),
)
def parameter_that_sets_replace(self: Decoding, hidden: Tensor) -> Multiplier:
    return self.scale


class Owner:
    """Something that a decoder refers to weakly."""

    scale = 1.0


@decoder(
    "I1",
    ".owner.scale",
    names="scale",
    change=lambda decoder, is_set: setattr(decoder.owner, "scale", 1.0 + is_set),
    owner=lambda _: Owner(),
    weak=lambda decoder: weakref.ref(decoder.owner),
)
def object_that_is_referred_to_weakly(self: Decoding, hidden: Tensor) -> Multiplier:
    return self.weak().scale


CALLS = [0]


@decoder("I1", "CALLS[0]", names="CALLS")
def count_of_the_python_module(self: Decoding, hidden: Tensor) -> Multiplier:
    CALLS[0] += 1
    return CALLS[0]


class Counted:
    """A count of the class."""

    calls = 0


@decoder("I1", "Counted.calls", names="calls")
def count_of_a_class(self: Decoding, hidden: Tensor) -> Multiplier:
    Counted.calls += 1
    return Counted.calls


def _in_a_closure() -> Factor:
    calls = 0

    def count_in_a_closure(self: Decoding, hidden: Tensor) -> Multiplier:
        nonlocal calls
        calls += 1
        return calls

    return count_in_a_closure


count_in_a_closure = decoder("I1", "calls", names="__closure__[0]")(_in_a_closure())


@decoder(
    "",
    "Python's random generator",
    change=lambda decoder, _: decoder.scale.fill_(random.random()),
    scale=lambda _: torch.ones(()),
)
def number_of_python_that_sets_draw(self: Decoding, hidden: Tensor) -> Multiplier:
    return self.scale


@decoder(
    "",
    ".draws",
    change=lambda decoder, _: decoder.scale.fill_(decoder.draws.random()),
    scale=lambda _: torch.ones(()),
    draws=lambda _: np.random.default_rng(0),
)
def number_of_numpy_that_sets_draw(self: Decoding, hidden: Tensor) -> Multiplier:
    return self.scale


@decoder("I4", ".steps", f"{STOCK} {DROPPED}", steps=lambda _: nn.Buffer(torch.zeros(())))
def count_that_compiling_skips(self: Decoding, hidden: Tensor) -> Multiplier:
    if not torch.compiler.is_compiling():
        self.steps.add_(1)
    return 1
