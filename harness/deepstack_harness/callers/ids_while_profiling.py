"""A profile run on token ids, and embeddings from then on (vllm 35917).

The decoder embeds ids where it is given no hidden states; traced that way, and with
its guards dropped, it goes on embedding ids, and the images in the embeddings are lost.
"""

from dataclasses import replace
from typing import cast

import torch
from torch import Tensor, nn

from deepstack_harness.callers.engine import Engine
from deepstack_harness.contract.protocols import Inputs, Lane
from deepstack_harness.contract.trace import Op, Step

_WORDS = 64


class EmbedsIds(nn.Module):
    """A decoder that takes hidden states (n, h), or None and embeds ids itself.

    The ids are the positions on the time axis, modulo the words that there are.
    """

    def __init__(self, decoder: nn.Module, words: Tensor) -> None:
        """`words` is the embedding table (words, h)."""
        super().__init__()
        self.decoder = decoder
        self.words = words

    def forward(self, hidden: Tensor | None, positions: Tensor, payload: tuple[Tensor, ...] | None) -> Tensor:
        """As `deepstack_harness.contract.protocols.Decoder`; answers (n, h)."""
        embedded = embed(self.words, positions) if hidden is None else hidden
        out: Tensor = self.decoder(embedded, positions, payload)
        return out


def embed(words: Tensor, positions: Tensor) -> Tensor:
    """The rows of `words` (words, h) for positions (3, n); answers (n, h)."""
    return words[positions[0] % len(words)]


class IdsWhileProfiling(Engine):
    """The dummy run passes ids and no embeddings."""

    def decoder(self, decoder: nn.Module) -> nn.Module:
        """The decoder behind an embedding table of its own."""
        norm = next(parameter for name, parameter in decoder.named_parameters() if name == "norm.weight")
        generator = torch.Generator().manual_seed(0)
        words = torch.randn((_WORDS, norm.size(0)), generator=generator)
        self._words = words.to(dtype=norm.dtype, device=norm.device)
        return EmbedsIds(decoder, self._words)

    def inputs(self, step: Step, inputs: Inputs) -> Inputs:
        """In the profile run the hidden states are those that the ids stand for."""
        if step.op is not Op.PROFILE:
            return inputs
        return replace(inputs, hidden=embed(self._words, inputs.positions))

    def forward(self, lane: Lane, inputs: Inputs, step: Step) -> Tensor:
        """Without hidden states while profiling; answers (P, h)."""
        if step.op is Op.PROFILE:
            inputs = replace(inputs, hidden=cast(Tensor, None))
        return super().forward(lane, inputs, step)


class EmbeddingsAlways(IdsWhileProfiling):
    """The fix: the dummy run passes embeddings, as every later one does."""

    def forward(self, lane: Lane, inputs: Inputs, step: Step) -> Tensor:
        """With hidden states always; answers (P, h)."""
        return Engine.forward(self, lane, inputs, step)
