"""A module, a function and inputs of a project's own, in the places where a family's would stand."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from typing_extensions import override

from deepstack_harness.callers.engine import Engine
from deepstack_harness.contract.protocols import Inputs
from deepstack_harness.contract.trace import Step
from deepstack_harness.families.positions import mrope_positions


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
