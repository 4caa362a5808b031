"""One level is made in another dtype than the rest."""

import torch

from deepstack_harness.revisions.reference import ReferenceBuffer


class OneLevelInFloat64(ReferenceBuffer):
    """Breaks R7."""

    def __init__(
        self, capacity: int, hidden: int, levels: int, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        """float64 whatever was asked for."""
        super().__init__(capacity, hidden, levels, dtype=dtype, device=device)
        self._levels[-1] = self._levels[-1].to(torch.float64)
