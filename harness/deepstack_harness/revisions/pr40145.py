"""vLLM #40145 (0.20.0, 0.20.1): a counter of set tokens, and checks against it."""

import torch
from torch import Tensor

from deepstack_harness.revisions.original import OriginalBuffer


class Pr40145Buffer(OriginalBuffer):
    """None when empty; get and clear refuse more tokens than were set."""

    def __init__(
        self, capacity: int, hidden: int, levels: int, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        """Start with a counter of zero."""
        super().__init__(capacity, hidden, levels, dtype=dtype, device=device)
        self._tokens_set = 0

    def get(self, tokens: int) -> tuple[Tensor, ...] | None:
        """None while the counter is zero: the fault of vLLM issue 43602."""
        if self._tokens_set == 0:
            return None
        self._check(tokens, "get")
        return super().get(tokens)

    def set(self, payload: Tensor) -> None:
        """As before, and count the tokens; rows behind them keep what they held."""
        super().set(payload)
        self._tokens_set = payload.size(1)

    def clear(self, tokens: int) -> None:
        """Zero `tokens` rows and the counter, unless there is nothing to clear."""
        if self._tokens_set == 0:
            return
        if tokens > 0:
            self._check(tokens, "clear")
            super().clear(tokens)
            self._tokens_set = 0

    def _check(self, tokens: int, call: str) -> None:
        # The padded count is compared with the unpadded one: vLLM issue 41485.
        if tokens > self._tokens_set:
            raise ValueError(f"{call} of {tokens} tokens, but only {self._tokens_set} were set")
