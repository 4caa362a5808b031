"""Pipeline stages: the layers of a decoder on two machines, of which the first one has the buffer.

A level that belongs to a layer of the second stage must be sent there.  Qwen3-VL
refuses to be split before its last level (an assertion in vLLM's constructor),
Qwen3-Omni's thinker has no such check, and Granite sends levels on (since a review
of vllm 40282 found them lost).
"""

from torch import Tensor, nn

from deepstack_harness.callers.engine import Engine
from deepstack_harness.callers.shared_weights import shared_copy
from deepstack_harness.contract.protocols import Buffer, BufferFactory, Inputs, Lane, Profile
from deepstack_harness.contract.trace import Step
from deepstack_harness.errors import StepUnavailable

Payload = tuple[Tensor, ...] | None


class TwoStages(nn.Module):
    """Both halves of a decoder's layers, one after the other; the norm is the second one's."""

    def __init__(self, decoder: nn.Module, *, forwards_levels: bool) -> None:
        """`decoder` has `layers` and `norm`; it stays as it is."""
        super().__init__()
        total = len(decoder.layers)  # type: ignore[arg-type]
        self.first_layers = total // 2
        self.first = _stage(decoder, 0, self.first_layers)
        self.first.norm = nn.Identity()
        self.second = _stage(decoder, self.first_layers, total)
        self.forwards_levels = forwards_levels
        self.by_target = hasattr(decoder, "level_of")

    def forward(self, hidden: Tensor, positions: Tensor, payload: Payload) -> Tensor:
        """As `deepstack_harness.contract.protocols.Decoder`; answers (n, h)."""
        between = self.first(hidden, positions, payload)
        out: Tensor = self.second(between, positions, self._later(payload))
        return out

    def _later(self, payload: Payload) -> Payload:
        """What is sent to the second stage."""
        if payload is None or not self.forwards_levels:
            return None
        return payload if self.by_target else payload[self.first_layers :]


def _stage(decoder: nn.Module, start: int, end: int) -> nn.Module:
    """The layers [start, end), numbered from 0; where levels name their target layer, that number too."""
    stage = shared_copy(decoder)
    stage.layers = stage.layers[start:end]  # type: ignore[index]
    targets: dict[int, int] = getattr(stage, "level_of", {})
    if targets:
        vars(stage)["level_of"] = {layer - start: level for layer, level in targets.items() if layer >= start}
    return stage


class PipelineStages(Engine):
    """Levels of later layers are sent to the stage that has those layers."""

    forwards_levels = True

    def decoder(self, decoder: nn.Module) -> nn.Module:
        """The decoder in two stages."""
        return TwoStages(decoder, forwards_levels=self.forwards_levels)


class PipelineLosesLevels(PipelineStages):
    """Only the first stage gets the payload, and has fewer layers than there are levels."""

    forwards_levels = False


class PipelineRefused(PipelineLosesLevels):
    """The same behind a check: a stage that would lose levels is refused before it runs."""

    def decoder(self, decoder: nn.Module) -> nn.Module:
        """The decoder in two stages, if all levels belong to the first."""
        self._first_layers = len(decoder.layers) // 2  # type: ignore[arg-type]
        return super().decoder(decoder)

    def buffer(self, make: BufferFactory, sizes: Profile) -> Buffer:
        """Make the buffer, and remember its levels."""
        self._levels = sizes.levels
        return super().buffer(make, sizes)

    def forward(self, lane: Lane, inputs: Inputs, step: Step) -> Tensor:
        """Raises `StepUnavailable` where levels would be lost."""
        if self._levels > self._first_layers:
            raise StepUnavailable(
                f"the first stage has {self._first_layers} layers and the payload {self._levels} levels: "
                "those of later layers would be lost"
            )
        return super().forward(lane, inputs, step)
