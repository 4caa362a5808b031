"""All levels share one storage, until it grows."""

import torch

from deepstack_harness.revisions.reference import ReferenceBuffer


class LevelsAliased(ReferenceBuffer):
    """Breaks R2: every level reads as the last one."""

    def __init__(
        self, capacity: int, hidden: int, levels: int, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        """One tensor, as often as there are levels."""
        super().__init__(capacity, hidden, levels, dtype=dtype, device=device)
        self._levels = self._levels[:1] * levels
