"""Interfaces: Buffer, Decoder, Family, Session, Probe, and the optional members of some of them.

Shapes: h hidden size, n tokens of a step, N tokens set, P tokens asked for.
torch is imported by type checkers only.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Facts_co = TypeVar("Facts_co", covariant=True)


class Buffer(Protocol):
    """The thing under test: per level a (capacity, hidden) tensor beside the decoder.

    It may also have the members of `AnnouncesMoves`, `ReleasesStorage`, `StatesVision`,
    `BeginsSteps` and `FollowsTensors`.
    """

    @property
    def capacity(self) -> int:
        """Token rows that fit without growth; changes when the buffer grows."""
        ...

    def get(self, tokens: int, /) -> tuple[Tensor, ...] | None:
        """Return P rows of every level, each (P, hidden): the payload, then exact zeros."""
        ...

    def set(self, payload: Tensor, /) -> None:
        """Copy a payload (levels, N, hidden) into rows [0, N)."""
        ...

    def clear(self, tokens: int, /) -> None:
        """End the payload: no row of it may be read again."""
        ...

    def resize(self, tokens: int, /) -> None:
        """Make room for `tokens` rows, and keep rows [0, N).

        Raises `deepstack_harness.errors.StepUnavailable` in a revision without this step.
        """
        ...


class BufferFactory(Protocol):
    """A class or function that makes buffers: a class of ours, a user's, or one bound to a source."""

    def __call__(
        self, capacity: int, hidden: int, levels: int, *, dtype: torch.dtype, device: torch.device
    ) -> Buffer:
        """Make an empty buffer."""
        ...


class AnnouncesMoves(Protocol):
    """A buffer whose `generation` changes before the first answer from new storage.

    A buffer without it promises that its storage never moves.
    """

    generation: int


class ReleasesStorage(Protocol):
    """A buffer that keeps old storage until it is told that no captured graph uses it any more."""

    def release(self) -> None:
        """Free the storage of earlier generations; called after graphs were captured again."""
        ...


class StatesVision(Protocol):
    """A buffer that states whether its model has a vision tower; without one, get always answers None."""

    vision: bool


class BeginsSteps(Protocol):
    """A buffer that an engine's own forward drives, and that sees every step, with or without a payload.

    No graph is captured with such a buffer.
    """

    def begin_step(self, tokens: int, *, profile: bool) -> None:
        """Start a step of P tokens; `profile` is True for a dummy step."""
        ...


class FollowsTensors(Protocol):
    """A buffer that moves to the dtype and device of a tensor it is shown, as vLLM #44384 proposes."""

    def follow(self, like: Tensor, /) -> None:
        """Make the levels anew unless they have the dtype and device of `like` (n, h)."""
        ...


class Decoder(Protocol):
    """A tiny text decoder, flat over tokens.

    It takes hidden (n, h), positions (3, n) int64, and as payload a tuple with one (n, h) per level, or
    None; it returns (n, h).  The argument must be called `payload`, because guards are looked up by name.
    """

    def __call__(self, hidden: Tensor, positions: Tensor, payload: tuple[Tensor, ...] | None) -> Tensor:
        """Run all layers and the final norm: (n, h), (3, n), one (n, h) per level or None -> (n, h)."""
        ...


class WorksInGraph(Protocol):
    """A buffer factory with work to do inside the compiled graph, beside the decoder's own."""

    def in_graph(self, decoder: torch.nn.Module, /) -> torch.nn.Module:
        """Return a `Decoder` around `decoder` that does the work and gives the same output."""
        ...


class Family(Protocol):
    """Builds the decoders of one model family, randomly initialised."""

    name: str
    hidden: int
    levels: int
    routed: bool
    """True if tokens are routed to experts, so that rounding may choose another expert."""

    def build(self, *, dtype: torch.dtype, device: torch.device, seed: int) -> torch.nn.Module:
        """Make a `Decoder` in eval mode; equal seeds give equal weights."""
        ...

    def positions(self, tokens: int, device: torch.device) -> Tensor:
        """Return realistic positions (3, n) int64 of a text with images; equal for equal n."""
        ...


class FamilyWithVariants(Family, Protocol):
    """A family that has variants: the same decoder with other sizes or another order of operations."""

    def variant(self, text: str, /) -> Family:
        """Return the family with the variants of `text` (`opaque+2b`); raises `UsageError` for others."""
        ...


@dataclass(frozen=True)
class Profile:
    """The largest sizes, which an arm may prepare for before the first step.

    `capacity` is in token rows; `levels` and `hidden` are those of the payload.
    """

    capacity: int
    hidden: int
    levels: int
    dtype: torch.dtype
    device: torch.device


@dataclass(frozen=True)
class Inputs:
    """Arguments of one decoder call: hidden (n, h), positions (3, n), one (n, h) per level or None.

    A caller whose decoder embeds token ids itself may give None for `hidden`.
    """

    hidden: Tensor
    positions: Tensor
    payload: tuple[Tensor, ...] | None


class Lane(Protocol):
    """One buffer and one session, as callers and capturing sessions drive them; each call is recorded."""

    allocated: int
    """Tensors that get and clear allocated while they were captured; the session counts them."""

    def get(self, tokens: int, /) -> tuple[Tensor, ...] | None:
        """Return the buffer's answer for P tokens, (P, h) per level or None, and record it."""
        ...

    def ask(self, tokens: int, /) -> tuple[Tensor, ...] | None:
        """Return the buffer's answer for P tokens, (P, h) per level or None, without a record.

        While a graph is captured, the operations of recording would be captured too.
        """
        ...

    def run(self, inputs: Inputs, /) -> Tensor:
        """Run the session's forward -> (n, h); rows above n are cut off, as engines cut them."""
        ...

    def clear(self, tokens: int, /) -> None:
        """Clear the buffer, and record the call."""
        ...

    def reads(self, payload: tuple[Tensor, ...] | None, /) -> None:
        """Record the payload, one (P, h) per level or None, that a graph is about to read."""
        ...


class Session(Protocol):
    """An opened arm, which runs one decoder in one way until it is closed.

    A step that the arm does not have raises `deepstack_harness.errors.StepUnavailable`.
    """

    def forward(self, inputs: Inputs) -> Tensor:
        """Run the decoder -> (n, h)."""
        ...

    def capture(self, inputs: Inputs, lane: Lane) -> None:
        """Warm up and capture a graph for as many tokens as `inputs` has, whose payload is not used."""
        ...

    def replay(self, inputs: Inputs, lane: Lane) -> Tensor:
        """Run the graph that was captured for as many tokens as `inputs` has -> (P, h)."""
        ...

    def reload(self) -> None:
        """Save the compiled code, load it back, and run the loaded code from now on."""
        ...

    def close(self) -> None:
        """Drop the compiled code."""
        ...


class WrapsSession(Protocol):
    """A session that captures or replays around another one, which compiles."""

    inner: Session


class Probe(Protocol[Facts_co]):
    """A context manager that watches a run and then returns facts about it."""

    def __enter__(self) -> Probe[Facts_co]:
        """Start watching."""
        ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        """Stop watching."""
        ...

    def facts(self) -> Facts_co:
        """Return what was measured; raises `deepstack_harness.errors.NotMeasured` if nothing was."""
        ...
