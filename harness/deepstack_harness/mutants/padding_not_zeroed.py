"""Storage starts with whatever was there, as `torch.empty` gives it."""

import torch

from deepstack_harness.revisions.reference import ReferenceBuffer


class PaddingNotZeroed(ReferenceBuffer):
    """Breaks R2: padding rows hold values that were never set."""

    def __init__(
        self, capacity: int, hidden: int, levels: int, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        """Ones stand for what was there, so that the fault shows every time."""
        super().__init__(capacity, hidden, levels, dtype=dtype, device=device)
        for level in self._levels:
            level.fill_(1)
