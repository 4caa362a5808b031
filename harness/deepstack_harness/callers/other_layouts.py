"""Callers whose decoder is given the payload in another layout than one tensor (P, h) per level.

tpu-inference packs all levels behind the embeddings, because a jitted step takes arguments only.
transformers, lmdeploy and the trainers pass a mask of visual tokens beside the features of these tokens.
Trainers cut both for the ranks of a step.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn
from typing_extensions import override

from deepstack_harness.callers.engine import Engine
from deepstack_harness.contract.protocols import Inputs, Lane
from deepstack_harness.contract.trace import Step

Payload = tuple[Tensor, ...] | None


class TakesPacked(nn.Module):
    """Decoder whose hidden states (n, h + levels * h) have the levels of the payload behind them."""

    def __init__(self, decoder: nn.Module) -> None:
        """Wrap `decoder`, which has a `norm` over its hidden size."""
        super().__init__()
        self.decoder = decoder
        self.hidden = decoder.get_parameter("norm.weight").size(0)

    @override
    def forward(self, hidden: Tensor, positions: Tensor, payload: Payload) -> Tensor:
        """Decode (n, h * (1 + levels)), or (n, h) without a payload, positions (3, n) int64 -> (n, h)."""
        if hidden.size(1) > self.hidden:
            hidden, *levels = torch.split(hidden, self.hidden, dim=1)
            payload = tuple(levels)
        out: Tensor = self.decoder(hidden, positions, payload)
        return out


class PacksLevels(Engine):
    """An engine that packs the levels behind the embeddings, and passes a step without levels as it is.

    A buffer that answers None makes two hidden sizes of this, each with a graph of its own
    (tpu-inference 2673).
    """

    @override
    def decoder(self, decoder: nn.Module) -> nn.Module:
        """Return the decoder that unpacks."""
        return TakesPacked(decoder)

    @override
    def forward(self, lane: Lane, inputs: Inputs, step: Step) -> Tensor:
        """Decode P tokens with the levels behind them, hidden (P, h) -> (P, h)."""
        packed = torch.cat([inputs.hidden, *(lane.get(step.tokens) or ())], dim=1)
        out = lane.run(replace(inputs, hidden=packed))
        lane.clear(step.tokens)
        return out


class CutsLevels(nn.Module):
    """Decoder that cuts each level for two ranks, and joins the parts as an all-gather does."""

    def __init__(self, decoder: nn.Module) -> None:
        """Wrap a `deepstack_harness.contract.protocols.Decoder`."""
        super().__init__()
        self.decoder = decoder

    @override
    def forward(self, hidden: Tensor, positions: Tensor, payload: Payload) -> Tensor:
        """Decode hidden (n, h), positions (3, n) int64, one (n, h) per level -> (n, h).

        Raises `TypeError` for a payload that is None, as the splitter of mbridge 47 does.
        """
        half = (hidden.size(0) + 1) // 2
        parts = [(level[:half], level[half:]) for level in payload]  # type: ignore[union-attr]  # the fault
        out: Tensor = self.decoder(hidden, positions, tuple(torch.cat(part) for part in parts))
        return out


class SplitsLevels(Engine):
    """An engine whose splitter loops over the levels of every step, of steps of text too (mbridge 129)."""

    @override
    def decoder(self, decoder: nn.Module) -> nn.Module:
        """Return the decoder that cuts its levels."""
        return CutsLevels(decoder)


Levels = tuple[Tensor, ...]
Scatter = Callable[[Tensor, Levels], Levels]
"""Function of a mask (n,) bool and features, per level (n, h) with visual tokens first, to rows (n, h)."""


class TakesMask(nn.Module):
    """Decoder that is given a mask of visual tokens, and per level their features at the front."""

    def __init__(self, decoder: nn.Module, scatter: Scatter) -> None:
        """Wrap `decoder`, whose levels `scatter` makes."""
        super().__init__()
        self.decoder = decoder
        self.scatter = scatter

    @override
    def forward(self, hidden: Tensor, positions: Tensor, payload: Payload) -> Tensor:
        """Decode hidden (n, h), positions (3, n), a mask (n,) and one (n, h) per level, or None -> (n, h)."""
        levels = None if payload is None else self.scatter(payload[0], payload[1:])
        out: Tensor = self.decoder(hidden, positions, levels)
        return out


def _by_mask(mask: Tensor, features: Levels) -> Levels:
    """Return rows (n, h) with the features (n, h) at the places of a mask (n,), in order, zeros elsewhere."""
    return tuple(torch.zeros_like(one).masked_scatter(mask.unsqueeze(1), one) for one in features)


def _by_index(mask: Tensor, features: Levels) -> Levels:
    """Return the rows (n, h) of `_by_mask`; as many rows are indexed as values of the mask (n,) say."""
    # All levels (n, levels, h) in one index, because Dynamo compiles no frame whose loop breaks.
    stacked = torch.stack(features, dim=1)
    levels = torch.zeros_like(stacked)
    rows = levels[mask]
    levels[mask] = rows + stacked[: rows.size(0)]
    return levels.unbind(1)


class MaskedScatter(Engine):
    """An engine that passes a mask and features, which its decoder scatters (lmdeploy's addition)."""

    @override
    def decoder(self, decoder: nn.Module) -> nn.Module:
        """Return the decoder that scatters."""
        return TakesMask(decoder, _by_mask)

    @override
    def forward(self, lane: Lane, inputs: Inputs, step: Step) -> Tensor:
        """Decode P tokens with a mask and features, hidden (P, h) -> (P, h)."""
        levels = lane.get(step.tokens)
        out = lane.run(replace(inputs, payload=None if levels is None else _masked(levels)))
        lane.clear(step.tokens)
        return out


class BooleanIndex(MaskedScatter):
    """An engine whose decoder reads and writes visual rows by a boolean index (transformers' addition)."""

    @override
    def decoder(self, decoder: nn.Module) -> nn.Module:
        """Return the decoder that indexes."""
        return TakesMask(decoder, _by_index)


def _masked(levels: Levels) -> Levels:
    """Return a mask (P,) of rows that are not zero, and each level (P, h) with these rows at the front."""
    mask = torch.stack(levels).ne(0).any(0).any(1)
    order = mask.logical_not().to(torch.uint8).argsort(stable=True)
    return (mask, *(level[order] for level in levels))
