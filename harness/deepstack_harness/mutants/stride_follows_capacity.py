"""Levels lie column by column, so that a row's stride is the capacity."""

import torch
from torch import Tensor

from deepstack_harness.revisions.reference import ReferenceBuffer


class StrideFollowsCapacity(ReferenceBuffer):
    """Breaks R11: each size of storage is compiled for itself, until the recompile limit."""

    def __init__(
        self, capacity: int, hidden: int, levels: int, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        """Rows are columns of what is allocated."""
        super().__init__(capacity, hidden, levels, dtype=dtype, device=device)
        self._levels = [_turned(level) for level in self._levels]

    def resize(self, tokens: int) -> None:
        """The same, in another size."""
        super().resize(tokens)
        self._levels = [_turned(level) for level in self._levels]


def _turned(level: Tensor) -> Tensor:
    """An equal tensor (rows, hidden) in memory of its own, (hidden, rows)."""
    return level.t().contiguous().t()
