"""Stores the levels in reverse order, from the ninth payload on."""

from torch import Tensor

from deepstack_harness.revisions.reference import ReferenceBuffer


class LevelsSwappedAfterEightSets(ReferenceBuffer):
    """Breaks R2: short tests never see it."""

    _sets = 0

    def set(self, payload: Tensor) -> None:
        """Last level first, unless it has to grow first."""
        fits = payload.size(1) <= self.capacity
        super().set(payload.flip(0) if fits and self._sets >= 8 else payload)
        self._sets += 1
