"""vLLM #49397 (0.28.0 .. 0.33.0): no buffers at all when the vision tower is skipped."""

import torch
from torch import Tensor

from deepstack_harness.revisions.pr43617 import Pr43617Buffer


class Pr49397Buffer(Pr43617Buffer):
    """As #43617; with `vision=False` every get answers None and the rest does nothing."""

    def __init__(
        self,
        capacity: int,
        hidden: int,
        levels: int,
        *,
        dtype: torch.dtype,
        device: torch.device,
        vision: bool = True,
    ) -> None:
        """Allocate the levels only beside a vision tower."""
        super().__init__(capacity, hidden, levels, dtype=dtype, device=device)
        self.vision = vision

    def get(self, tokens: int) -> tuple[Tensor, ...] | None:
        """The levels, or always None without a vision tower."""
        return super().get(tokens) if self.vision else None

    def set(self, payload: Tensor) -> None:
        """Copied, or dropped without a vision tower."""
        if self.vision:
            super().set(payload)
