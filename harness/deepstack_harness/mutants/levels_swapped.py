"""Stores the levels in reverse order, unless it has to grow first."""

from torch import Tensor

from deepstack_harness.revisions.reference import ReferenceBuffer


class LevelsSwapped(ReferenceBuffer):
    """Breaks R2: right rows, wrong level."""

    def set(self, payload: Tensor) -> None:
        """Last level first."""
        grows = payload.size(1) > self.capacity
        super().set(payload if grows else payload.flip(0))
