"""Callers whose profile run passes token ids, and whose later steps pass embeddings (vllm 35917).

The decoder embeds ids when it is given no hidden states.  Traced that way, and with its guards dropped, it
embeds ids in every later step too, and the images in the embeddings are lost.
"""

from dataclasses import replace
from typing import cast

import torch
from torch import Tensor, nn
from typing_extensions import override

from deepstack_harness.callers.engine import Engine
from deepstack_harness.contract.protocols import Inputs, Lane
from deepstack_harness.contract.trace import Op, Step

_WORDS = 64


class EmbedsIds(nn.Module):
    """A decoder that embeds ids itself when it is given None in place of hidden states (n, h).

    The ids are the positions on the time axis, modulo the size of the table.
    """

    def __init__(self, decoder: nn.Module, words: Tensor) -> None:
        """Wrap `decoder` with an embedding table `words` (words, h)."""
        super().__init__()
        self.decoder = decoder
        self.words = words

    @override
    def forward(self, hidden: Tensor | None, positions: Tensor, payload: tuple[Tensor, ...] | None) -> Tensor:
        """Decode hidden (n, h) or None, positions (3, n) int64, one (rows, h) per level or None -> (n, h)."""
        embedded = embed(self.words, positions) if hidden is None else hidden
        out: Tensor = self.decoder(embedded, positions, payload)
        return out


def embed(words: Tensor, positions: Tensor) -> Tensor:
    """Look up the rows of `words` (words, h) for positions (3, n) int64 -> (n, h)."""
    return words[positions[0] % len(words)]


class IdsWhileProfiling(Engine):
    """An engine whose profile run passes ids and no embeddings."""

    @override
    def decoder(self, decoder: nn.Module) -> nn.Module:
        """Return the decoder with an embedding table of its own, drawn from a seed."""
        norm = next(parameter for name, parameter in decoder.named_parameters() if name == "norm.weight")
        generator = torch.Generator().manual_seed(0)
        words = torch.randn((_WORDS, norm.size(0)), generator=generator)
        self._words = words.to(dtype=norm.dtype, device=norm.device)
        return EmbedsIds(decoder, self._words)

    @override
    def inputs(self, step: Step, inputs: Inputs) -> Inputs:
        """Replace the hidden states (n, h) of a profile run by the embeddings of the ids."""
        if step.op is not Op.PROFILE:
            return inputs
        return replace(inputs, hidden=embed(self._words, inputs.positions))

    @override
    def forward(self, lane: Lane, inputs: Inputs, step: Step) -> Tensor:
        """Run the outer forward, hidden (P, h) -> (P, h), without hidden states while profiling."""
        if step.op is Op.PROFILE:
            inputs = replace(inputs, hidden=cast(Tensor, None))
        return super().forward(lane, inputs, step)


class EmbeddingsAlways(IdsWhileProfiling):
    """An engine whose profile run passes embeddings as every later step does: the fix."""

    @override
    def forward(self, lane: Lane, inputs: Inputs, step: Step) -> Tensor:
        """Run the outer forward with hidden states in every step, (P, h) -> (P, h)."""
        return Engine.forward(self, lane, inputs, step)
