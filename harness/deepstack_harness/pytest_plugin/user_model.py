"""A module, a function and inputs of a project's own, in the places where a family's would stand."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from typing_extensions import override

from deepstack_harness.callers.engine import Engine
from deepstack_harness.contract.plural import plural
from deepstack_harness.contract.protocols import Inputs
from deepstack_harness.contract.trace import RUNS_DECODER, Step, Trace
from deepstack_harness.families.positions import mrope_positions
from deepstack_harness.play.model import Model


@dataclass
class OwnFamily:
    """A `deepstack_harness.contract.protocols.Family` whose one decoder exists already."""

    name: str
    hidden: int
    levels: int
    routed: bool = False
    positions: Callable[..., Tensor] = mrope_positions

    def build(self, *, dtype: torch.dtype, device: torch.device, seed: int) -> nn.Module:
        """Refuse to build: the user's module is there already."""
        raise NotImplementedError(self.name)


def drawn_inputs(model: Model, trace: Trace) -> Inputs:
    """Return inputs of the first step that runs the decoder: (n, h), (3, n) and one (n, h) per level."""
    runs = (step.tokens for step in trace if step.op in RUNS_DECODER and step.tokens > 0)
    tokens, family = next(runs, 1), model.family
    drawn = torch.randn(
        family.levels + 1, tokens, family.hidden, generator=torch.Generator().manual_seed(0)
    ).to(dtype=model.dtype, device=model.device)
    return Inputs(drawn[0], family.positions(tokens, model.device), tuple(drawn[1:]))


def described(inputs: Inputs) -> str:
    """Return the shapes of a call in words, as for an error; the tensors are as in `Inputs`, of any shape."""
    hidden, positions = (
        f"{tuple(one.shape)} {str(one.dtype).removeprefix('torch.')}"
        for one in (inputs.hidden, inputs.positions)
    )
    payload = inputs.payload
    levels = "None" if payload is None else f"{plural(len(payload), 'tensor')}"
    shape = f" {tuple(payload[0].shape)}" if payload else ""
    return f"hidden {hidden}, positions {positions}, payload {levels}{shape}"


class Given(Engine):
    """Session that is called with `inputs(tokens)` instead of drawn hidden states."""

    def __init__(self, inputs: Callable[[int], Inputs]) -> None:
        """Take `inputs`, which returns equal values for equal counts."""
        self._inputs = inputs

    @override
    def inputs(self, step: Step, inputs: Inputs) -> Inputs:
        return replace(self._inputs(step.tokens), payload=None)


class GivenBuffer:
    """Answers with the payload of `inputs(tokens)`; there is nothing to set or clear."""

    def __init__(self, inputs: Callable[[int], Inputs], capacity: int) -> None:
        """Take `inputs` and a capacity: the rows of the largest call."""
        self._inputs = inputs
        self.capacity = capacity

    def get(self, tokens: int) -> tuple[Tensor, ...] | None:
        """Return the payload of this many tokens, one (tokens, h) per level."""
        return self._inputs(tokens).payload

    def set(self, payload: Tensor) -> None:
        """Drop a payload (levels, N, h): no trace of a call sets."""

    def clear(self, tokens: int) -> None:
        """Do nothing."""

    def resize(self, tokens: int) -> None:
        """Do nothing."""


@dataclass(frozen=True)
class GivenBuffers:
    """A `deepstack_harness.contract.protocols.BufferFactory` of them."""

    inputs: Callable[[int], Inputs]

    def __call__(
        self, capacity: int, hidden: int, levels: int, *, dtype: torch.dtype, device: torch.device
    ) -> GivenBuffer:
        """Make a buffer with the inputs."""
        return GivenBuffer(self.inputs, capacity)


class _Function(nn.Module):
    """A function as a decoder; without levels it is called with None instead of an empty payload."""

    def __init__(self, function: Callable[..., Tensor], levels: int, device: torch.device) -> None:
        super().__init__()
        self._function = function
        self._levels = levels
        # Tells the probes where the function runs.
        self.place = nn.Parameter(torch.empty(0, device=device), requires_grad=False)

    @override
    def forward(self, hidden: Tensor, positions: Tensor, payload: tuple[Tensor, ...] | None) -> Tensor:
        return self._function(hidden, positions, payload if self._levels else None)


def as_module(function: Callable[..., Tensor], levels: int, device: torch.device) -> nn.Module:
    """Return a decoder that calls `function`; a module that takes a payload is one already.

    It is called with hidden (n, h), positions (3, n) and one (n, h) per level or None, and returns (n, h).
    """
    if isinstance(function, nn.Module) and levels:
        return function
    return _Function(function, levels, device)
