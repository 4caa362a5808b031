"""The interfaces everything else stands on: Buffer, Decoder, Family, Session, Probe.

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

    It may also have `generation: int`, which changes before storage moves; a
    buffer without it promises that storage never moves.  A buffer of a model that
    was built without a vision tower sets `vision = False` and always answers None.
    """

    @property
    def capacity(self) -> int:
        """The number of token rows that the buffer has room for now."""
        ...

    def get(self, tokens: int, /) -> tuple[Tensor, ...] | None:
        """Return P rows of every level, each (P, hidden): the payload and then exact zeros."""
        ...

    def set(self, payload: Tensor, /) -> None:
        """Copy a payload (levels, N, hidden) into rows [0, N)."""
        ...

    def clear(self, tokens: int, /) -> None:
        """End the payload's life: no row of it is read again."""
        ...

    def resize(self, tokens: int, /) -> None:
        """Make room for `tokens` rows, keeping [0, N).

        Raises `deepstack_harness.errors.StepUnavailable` in a revision without this step.
        """
        ...


class BufferFactory(Protocol):
    """A maker of buffers: a class of ours or of a user's, or a class bound to a source."""

    def __call__(
        self, capacity: int, hidden: int, levels: int, *, dtype: torch.dtype, device: torch.device
    ) -> Buffer:
        """Make an empty buffer."""
        ...


class Decoder(Protocol):
    """A tiny text decoder, flat over tokens.

    hidden (n, h), positions (3, n) int64, payload a tuple of (n, h) per level or
    None; answers (n, h).  The argument must be called `payload`: guards are
    looked up by that name.
    """

    def __call__(self, hidden: Tensor, positions: Tensor, payload: tuple[Tensor, ...] | None) -> Tensor:
        """Run all layers and the final norm."""
        ...


class Family(Protocol):
    """Builds the decoders of one model family, randomly initialised."""

    name: str
    hidden: int
    levels: int
    routed: bool
    """Whether tokens are routed to experts, so that rounding may choose another one."""

    def build(self, *, dtype: torch.dtype, device: torch.device, seed: int) -> torch.nn.Module:
        """Make a `Decoder` in eval mode; equal seeds give equal weights."""
        ...

    def positions(self, tokens: int, device: torch.device) -> Tensor:
        """Realistic positions (3, n) of a text with images; equal for equal n."""
        ...


@dataclass(frozen=True)
class Profile:
    """The largest sizes, which an arm may prepare for before the first step.

    capacity in token rows; `levels` and `hidden` are the payload's.
    """

    capacity: int
    hidden: int
    levels: int
    dtype: torch.dtype
    device: torch.device


@dataclass(frozen=True)
class Inputs:
    """The arguments of one decoder call (see `Decoder` for shapes).

    A caller whose decoder embeds token ids itself may give None for `hidden`.
    """

    hidden: Tensor
    positions: Tensor
    payload: tuple[Tensor, ...] | None


class Lane(Protocol):
    """One buffer and one session, as callers and capturing sessions drive them; it takes notes."""

    allocated: int
    """Tensors that get and clear allocated while they were captured; the session counts them."""

    def get(self, tokens: int, /) -> tuple[Tensor, ...] | None:
        """Return the buffer's answer for P tokens, one (P, h) per level."""
        ...

    def ask(self, tokens: int, /) -> tuple[Tensor, ...] | None:
        """Return the answer without a note: in a graph that is captured, the note would be captured too."""
        ...

    def run(self, inputs: Inputs, /) -> Tensor:
        """Run the session's forward; return (n, h), rows above n cut off as engines cut them."""
        ...

    def clear(self, tokens: int, /) -> None:
        """Clear the buffer."""
        ...

    def reads(self, payload: tuple[Tensor, ...] | None, /) -> None:
        """Note what a graph is about to read, before it does."""
        ...


class Session(Protocol):
    """An opened arm: one decoder, run in one way, until closed.

    Steps an arm does not have raise `deepstack_harness.errors.StepUnavailable`.
    """

    def forward(self, inputs: Inputs) -> Tensor:
        """Run the decoder; answers (n, h)."""
        ...

    def capture(self, inputs: Inputs, lane: Lane) -> None:
        """Warm up and record a graph for as many tokens as `inputs` has; its payload is not used."""
        ...

    def replay(self, inputs: Inputs, lane: Lane) -> Tensor:
        """Run the graph recorded for as many tokens as `inputs` has; answers (P, h)."""
        ...

    def reload(self) -> None:
        """Save what was compiled, and go on with what was loaded back."""
        ...

    def close(self) -> None:
        """Drop what was compiled."""
        ...


class Probe(Protocol[Facts_co]):
    """A context manager that watches a run, and then states facts."""

    def __enter__(self) -> Probe[Facts_co]:
        """Start watching."""
        ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        """Stop watching."""
        ...

    def facts(self) -> Facts_co:
        """Return the facts; raises `deepstack_harness.errors.NotMeasured` when nothing was measured."""
        ...
