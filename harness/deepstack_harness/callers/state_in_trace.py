"""A caller whose compiled decoder reads the count of tokens from an attribute, not from an argument.

Tracing reads a Python number once.  With its guards, a graph serves one value of it; without them, the
first value is used for ever.  In tpu-inference 2266 deepstack state did not survive jit; with the work
outside the jitted function, 102 shapes took 1102 compilations (tpu-inference 3181).
"""

import torch
from torch import Tensor, nn
from typing_extensions import override

from deepstack_harness.callers.engine import Engine
from deepstack_harness.contract.protocols import Buffer

Payload = tuple[Tensor, ...] | None


class CountsTokens(nn.Module):
    """A decoder that uses the first `tokens_set` rows of the payload, and zeros behind them."""

    def __init__(self, decoder: nn.Module) -> None:
        super().__init__()
        self.decoder = decoder
        self.tokens_set = 0
        """N, the rows of the last payload: a plain Python number."""

    @override
    def forward(self, hidden: Tensor, positions: Tensor, payload: Payload) -> Tensor:
        """Decode hidden (n, h), positions (3, n) int64, one (n, h) per level or None -> (n, h)."""
        if payload is not None:
            row_n1 = torch.arange(hidden.size(0), device=hidden.device).unsqueeze(1)
            payload = tuple(level.masked_fill(row_n1 >= self.tokens_set, 0) for level in payload)
        out: Tensor = self.decoder(hidden, positions, payload)
        return out


class StateInTrace(Engine):
    """An engine that stores the count on its decoder, which reads it while it is traced."""

    @override
    def decoder(self, decoder: nn.Module) -> nn.Module:
        """Return the decoder that counts."""
        self._counts = CountsTokens(decoder)
        return self._counts

    @override
    def set(self, buffer: Buffer, payload: Tensor) -> None:
        """Set a payload (levels, N, hidden), and store N."""
        super().set(buffer, payload)
        self._counts.tokens_set = payload.size(1)
