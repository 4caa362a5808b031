"""Clears by starting anew in other storage."""

import torch

from deepstack_harness.revisions.reference import ReferenceBuffer


class MovesOnClear(ReferenceBuffer):
    """Breaks R6: graphs go on reading the old one."""

    def clear(self, tokens: int) -> None:
        """New zeros, unannounced."""
        super().clear(tokens)
        self._levels = [torch.zeros_like(level) for level in self._levels]
