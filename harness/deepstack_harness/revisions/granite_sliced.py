"""Granite 4 Vision since vLLM #40917 (0.21.0 .. 0.33.0): the levels are sliced to the step.

Upstream has no get, set or clear: `Granite4VisionForConditionalGeneration` does their
work inside its `embed_input_ids` (set) and `forward` (get before, clear behind the
language model).
"""

import torch
from torch import Tensor

from deepstack_harness.errors import StepUnavailable


class GraniteSlicedBuffer:
    """Levels of (capacity, hidden) that never grow; a counter of the tokens of the last visual step."""

    def __init__(
        self, capacity: int, hidden: int, levels: int, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        """Allocate zeroed levels."""
        self._hidden = hidden
        self._levels = [torch.zeros(capacity, hidden, dtype=dtype, device=device) for _ in range(levels)]
        self._tokens_set = 0

    @property
    def capacity(self) -> int:
        """Token rows of a level."""
        return self._levels[0].size(0)

    def get(self, tokens: int) -> tuple[Tensor, ...] | None:
        """Slices of `tokens` rows, fewer above the capacity; `StepUnavailable` for a negative count."""
        _refuse_negative(tokens)
        return tuple(level[:tokens] for level in self._levels)

    def set(self, payload: Tensor) -> None:
        """Scatter (levels, N, hidden) into rows [0, N), zeroed before; rows behind keep what they held.

        N = 0 is a step of text: the counter is reset, and nothing is zeroed.  Raises
        IndexError above the capacity, where level 0 is zeroed already.  Levels beyond
        the last one are dropped; the hidden size counts only as a whole: all levels
        of a token arrive in one row, and are split again.
        """
        tokens = payload.size(1)
        if tokens:
            self._follow(payload)
            packed = payload.permute(1, 0, 2).flatten(1)
            self._scatter(torch.split(packed, self._hidden, dim=-1), tokens)
        self._tokens_set = tokens

    def clear(self, tokens: int) -> None:
        """Zero as many rows as the counter says, however many are asked for, and the counter."""
        _refuse_negative(tokens)
        for level in self._levels:
            level[: self._tokens_set].zero_()
        self._tokens_set = 0

    def resize(self, tokens: int) -> None:
        """Granite has no such step."""
        raise StepUnavailable(f"{type(self).__name__} has no resize")

    def _follow(self, payload: Tensor) -> None:
        """Move to the payload's dtype and device, with all rows; before the first set they lie as made."""
        self._levels = [level.to(device=payload.device, dtype=payload.dtype) for level in self._levels]

    def _scatter(self, features: tuple[Tensor, ...], tokens: int) -> None:
        visual = torch.ones(tokens, dtype=torch.bool, device=features[0].device)
        for index, level in enumerate(self._levels):
            rows = level[:tokens]
            rows.zero_()
            rows[visual] = features[index]


def _refuse_negative(tokens: int) -> None:
    if tokens < 0:
        raise StepUnavailable(
            "Granite counts the hidden states it is given: there is no step of fewer than 0"
        )
