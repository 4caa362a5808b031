"""Zeroes by copying zeros that it has to allocate first."""

import torch

from deepstack_harness.revisions.reference import ReferenceBuffer


class AllocatesOnClear(ReferenceBuffer):
    """Breaks R6 under graphs: memory is allocated while one is captured."""

    def clear(self, tokens: int) -> None:
        """Once in place, and once more by copying."""
        super().clear(tokens)
        for level in self._levels:
            level.copy_(torch.zeros_like(level))
