"""Pipeline stages: the layers of a decoder on two machines, of which the first one has the buffer.

A level that belongs to a layer of the second stage must be sent there.  Qwen3-VL refuses to be split
before its last level (an assertion in vLLM's constructor).  Qwen3-Omni's thinker has no such check.
Granite sends the levels on, since a review of vllm 40282 found them lost.
"""

from torch import Tensor, nn
from typing_extensions import override

from deepstack_harness.callers.decoder_copies import layers_of, shared_copy
from deepstack_harness.callers.engine import Engine
from deepstack_harness.contract.protocols import Buffer, BufferFactory, Inputs, Lane, Profile
from deepstack_harness.contract.trace import Step
from deepstack_harness.errors import StepUnavailable

Payload = tuple[Tensor, ...] | None


class TwoStages(nn.Module):
    """Two halves of a decoder's layers, one after the other; the final norm belongs to the second."""

    def __init__(self, decoder: nn.Module, *, forwards_levels: bool) -> None:
        """Split a copy of `decoder`, which has `layers` and `norm`, before its middle layer."""
        super().__init__()
        total = len(layers_of(decoder))
        self.first_layers = total // 2
        self.first = _stage(decoder, 0, self.first_layers)
        self.first.norm = nn.Identity()
        self.second = _stage(decoder, self.first_layers, total)
        self.forwards_levels = forwards_levels
        self.by_target = hasattr(decoder, "level_of")

    @override
    def forward(self, hidden: Tensor, positions: Tensor, payload: Payload) -> Tensor:
        """Run both stages: hidden (n, h), positions (3, n) int64, (rows, h) per level or None -> (n, h)."""
        between = self.first(hidden, positions, payload)
        out: Tensor = self.second(between, positions, self._later(payload))
        return out

    def _later(self, payload: Payload) -> Payload:
        """Return the payload that is sent to the second stage."""
        if payload is None or not self.forwards_levels:
            return None
        return payload if self.by_target else payload[self.first_layers :]


def _stage(decoder: nn.Module, start: int, end: int) -> nn.Module:
    """Return a copy with the layers [start, end), numbered from 0.

    A decoder whose levels name their target layers (Granite's) has these renumbered too.
    """
    stage = shared_copy(decoder)
    stage.layers = layers_of(stage)[start:end]
    targets: dict[int, int] = getattr(stage, "level_of", {})
    if targets:
        vars(stage)["level_of"] = {layer - start: level for layer, level in targets.items() if layer >= start}
    return stage


class PipelineStages(Engine):
    """An engine of two stages that sends levels of later layers to the stage with those layers."""

    forwards_levels = True

    @override
    def decoder(self, decoder: nn.Module) -> nn.Module:
        """Return the decoder in two stages."""
        return TwoStages(decoder, forwards_levels=self.forwards_levels)


class PipelineLosesLevels(PipelineStages):
    """An engine that gives the payload to the first stage only, which may have too few layers for it."""

    forwards_levels = False


class PipelineRefused(PipelineLosesLevels):
    """An engine that refuses to run a first stage with fewer layers than the payload has levels."""

    @override
    def decoder(self, decoder: nn.Module) -> nn.Module:
        """Return the decoder in two stages, and remember how many layers the first one has."""
        self._first_layers = len(layers_of(decoder)) // 2
        return super().decoder(decoder)

    @override
    def buffer(self, make: BufferFactory, sizes: Profile) -> Buffer:
        """Make the buffer, and remember how many levels it has."""
        self._levels = sizes.levels
        return super().buffer(make, sizes)

    @override
    def forward(self, lane: Lane, inputs: Inputs, step: Step) -> Tensor:
        """Run both stages, hidden (P, h) -> (P, h); raises `StepUnavailable` where levels would be lost."""
        if self._levels > self._first_layers:
            raise StepUnavailable(
                f"the first stage has {self._first_layers} layers and the payload {self._levels} levels: "
                "those of later layers would be lost"
            )
        return super().forward(lane, inputs, step)
