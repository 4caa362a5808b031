"""A count that the compiled decoder reads from an attribute, instead of being given it.

What a buffer keeps beside its tensors is no argument: tracing reads it once.  With
its guards a graph is good for one value of it; without them it goes on with the
first (tpu-inference 2266, where upstream's deepstack state did not survive jit; with
the work outside the jitted function, 102 shapes became 1102 compilations, 3181).
"""

import torch
from torch import Tensor, nn
from typing_extensions import override

from deepstack_harness.callers.engine import Engine
from deepstack_harness.contract.protocols import Buffer

Payload = tuple[Tensor, ...] | None


class CountsTokens(nn.Module):
    """A decoder that takes as many payload rows as `tokens_set` says, and zeros behind them."""

    def __init__(self, decoder: nn.Module) -> None:
        super().__init__()
        self.decoder = decoder
        self.tokens_set = 0
        """N: rows that the last payload had; a plain Python number."""

    def forward(self, hidden: Tensor, positions: Tensor, payload: Payload) -> Tensor:
        """As `deepstack_harness.contract.protocols.Decoder`; answers (n, h)."""
        if payload is not None:
            row_n1 = torch.arange(hidden.size(0), device=hidden.device).unsqueeze(1)
            payload = tuple(level.masked_fill(row_n1 >= self.tokens_set, 0) for level in payload)
        out: Tensor = self.decoder(hidden, positions, payload)
        return out


class StateInTrace(Engine):
    """Notes the count beside the buffer, where the decoder looks it up."""

    @override
    def decoder(self, decoder: nn.Module) -> nn.Module:
        """The decoder behind the count."""
        self._counts = CountsTokens(decoder)
        return self._counts

    @override
    def set(self, buffer: Buffer, payload: Tensor) -> None:
        """Hand over the payload (levels, N, hidden), and note N."""
        super().set(buffer, payload)
        self._counts.tokens_set = payload.size(1)
