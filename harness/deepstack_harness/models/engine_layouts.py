"""Callers whose decoder is given the payload in another layout, or whose layers lie on two machines.

tpu-inference packs all levels after the embeddings, because a jitted step takes arguments only.
transformers, lmdeploy and the trainers pass a mask of visual tokens and the features of these tokens.
Trainers cut both for the ranks of a step.

With pipeline stages the first machine has the buffer, and a level that belongs to a layer of the second stage
must be sent there. Qwen3-VL refuses to be split before its last level (an assertion in vLLM's constructor).
Qwen3-Omni's thinker has no such check. Granite sends the levels on, since a review of vllm 40282 found them
lost.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor, nn
from typing_extensions import override

from deepstack_harness.contract.protocols import Buffer, BufferFactory, Inputs, Lane, Profile
from deepstack_harness.contract.trace import Step
from deepstack_harness.errors import StepUnavailable
from deepstack_harness.models.engine import Engine, Payload, WrapsDecoder, layers_of, shared_copy


class TakesPacked(WrapsDecoder):
    """Decoder whose hidden states (n, h + levels * h) have the levels of the payload after them."""

    def __init__(self, decoder: nn.Module) -> None:
        """Wrap `decoder`, which has a `norm` over its hidden size."""
        super().__init__(decoder)
        self.hidden = decoder.get_parameter("norm.weight").size(0)

    @override
    def forward(self, hidden: Tensor, positions: Tensor, payload: Payload | None) -> Tensor:
        """Decode (n, h * (1 + levels)), or (n, h) without a payload, positions (3, n) int64 -> (n, h)."""
        if hidden.size(1) > self.hidden:
            hidden, *levels = torch.split(hidden, self.hidden, dim=1)
            payload = tuple(levels)
        return super().forward(hidden, positions, payload)


class PacksLevels(Engine):
    """An engine that packs the levels after the embeddings, and passes a step without levels as it is.

    A buffer that returns None makes two hidden sizes of this, each with a graph of its own
    (tpu-inference 2673).
    """

    faulty = False
    _wrapper = TakesPacked

    @override
    def _with_payload(self, lane: Lane, inputs: Inputs, tokens: int) -> Inputs:
        """Return the inputs with the levels after their hidden states: (P, h + levels * h)."""
        return replace(inputs, hidden=torch.cat([inputs.hidden, *(lane.get(tokens) or ())], dim=1))


class CutsLevels(WrapsDecoder):
    """Decoder that cuts each level for two ranks, and joins the parts as an all-gather does."""

    @override
    def levels(self, hidden: Tensor, payload: Payload | None) -> Payload:
        """Cut and join one (n, h) per level, for hidden (n, h).

        Raises `TypeError` for a payload that is None, as the splitter of mbridge 47 does.
        """
        half = (hidden.size(0) + 1) // 2
        parts = [(level[:half], level[half:]) for level in payload]  # type: ignore[union-attr]  # the fault
        return tuple(torch.cat(part) for part in parts)


class SplitsLevels(Engine):
    """An engine whose splitter loops over the levels of every step, of steps of text too (mbridge 129)."""

    faulty = False
    _wrapper = CutsLevels


class ScattersByMask(WrapsDecoder):
    """Decoder that is given a mask (n,) of visual tokens, and per level (n, h) their features first."""

    @override
    def levels(self, hidden: Tensor, payload: Payload | None) -> Payload | None:
        """Return rows (n, h) with the features at the places of the mask, in order, and zeros elsewhere."""
        if payload is None:
            return None
        mask, *features = payload
        return self.scatter(mask, features)

    def scatter(self, mask: Tensor, features: Sequence[Tensor]) -> Payload:
        """Return rows (n, h) of a mask (n,) and features (n, h)."""
        return tuple(torch.zeros_like(level).masked_scatter(mask.unsqueeze(1), level) for level in features)


class ScattersByIndex(ScattersByMask):
    """Decoder that scatters by boolean indexing: sizes depend on the values of the mask."""

    @override
    def scatter(self, mask: Tensor, features: Sequence[Tensor]) -> Payload:
        """Return rows (n, h) of a mask (n,) and features (n, h)."""
        # All levels (n, levels, h) in one index, because Dynamo compiles no frame whose loop breaks.
        stacked = torch.stack(list(features), dim=1)
        levels = torch.zeros_like(stacked)
        rows = levels[mask]
        levels[mask] = rows + stacked[: rows.size(0)]
        return levels.unbind(1)


class MaskedScatter(Engine):
    """An engine that passes a mask and features, which its decoder scatters (lmdeploy's addition)."""

    faulty = False
    _wrapper: ClassVar[type[ScattersByMask]] = ScattersByMask

    @override
    def _with_payload(self, lane: Lane, inputs: Inputs, tokens: int) -> Inputs:
        """Return the inputs with a mask (P,) and features (P, h), or with None."""
        levels = lane.get(tokens)
        return replace(inputs, payload=None if levels is None else _masked(levels))


class BooleanIndex(MaskedScatter):
    """An engine whose decoder reads and writes visual rows by a boolean index (transformers' addition)."""

    faulty = True
    _wrapper = ScattersByIndex


def _masked(levels: Payload) -> Payload:
    """Return a mask (P,) of rows that are not zero, and each level (P, h) with these rows at the front."""
    mask = torch.stack(levels).ne(0).any(0).any(1)
    order = mask.logical_not().to(torch.uint8).argsort(stable=True)
    return (mask, *(level[order] for level in levels))


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
    def forward(self, hidden: Tensor, positions: Tensor, payload: Payload | None) -> Tensor:
        """Run both stages: hidden (n, h), positions (3, n) int64, (rows, h) per level or None -> (n, h)."""
        between = self.first(hidden, positions, payload)
        sent = payload if self.forwards_levels else None
        if sent is not None and not self.by_target:
            sent = sent[self.first_layers :]
        out: Tensor = self.second(between, positions, sent)
        return out


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

    faulty = False
    forwards_levels = True

    @override
    def decoder(self, decoder: nn.Module) -> nn.Module:
        """Return the decoder in two stages."""
        return TwoStages(decoder, forwards_levels=self.forwards_levels)


class PipelineLosesLevels(PipelineStages):
    """An engine that gives the payload to the first stage only, which may have too few layers for it."""

    faulty = True
    forwards_levels = False


class PipelineRefused(PipelineLosesLevels):
    """An engine that refuses to run a first stage with fewer layers than the payload has levels."""

    faulty = False

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
