"""The last level is never written, unless it has to grow first."""

from torch import Tensor

from deepstack_harness.revisions.reference import ReferenceBuffer


class ForgetsALevel(ReferenceBuffer):
    """Breaks R2."""

    def set(self, payload: Tensor) -> None:
        """All levels but one."""
        fits = payload.size(1) <= self.capacity
        super().set(payload)
        if fits:
            self._levels[-1].zero_()
