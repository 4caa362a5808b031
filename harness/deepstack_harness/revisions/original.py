"""The first revision (vLLM 0.11 .. 0.19.1): no counter, get always slices."""

import torch
from torch import Tensor

from deepstack_harness.errors import StepUnavailable


class OriginalBuffer:
    """Levels of (capacity, hidden); nothing remembers how many rows hold data."""

    def __init__(
        self, capacity: int, hidden: int, levels: int, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        """Allocate zeroed levels."""
        self._hidden = hidden
        self._levels = [torch.zeros(capacity, hidden, dtype=dtype, device=device) for _ in range(levels)]

    @property
    def capacity(self) -> int:
        """Token rows of a level."""
        return self._levels[0].size(0)

    def get(self, tokens: int) -> tuple[Tensor, ...] | None:
        """Slices of `tokens` rows, fewer above the capacity."""
        return tuple(level[:tokens] for level in self._levels)

    def set(self, payload: Tensor) -> None:
        """Copy (levels, N, hidden) in; above the capacity into new storage, unannounced."""
        tokens = payload.size(1)
        if tokens > self.capacity:
            self._reallocate(tokens)
        for index, level in enumerate(self._levels):
            level[:tokens].copy_(payload[index])

    def clear(self, tokens: int) -> None:
        """Zero the first `tokens` rows."""
        if tokens > 0:
            for level in self._levels:
                level[:tokens].zero_()

    def resize(self, tokens: int) -> None:
        """This revision has no such step."""
        raise StepUnavailable(f"{type(self).__name__} has no resize")

    def _reallocate(self, rows: int) -> None:
        self._levels = [level.new_zeros(rows, self._hidden) for level in self._levels]
