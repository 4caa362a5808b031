"""A payload of one token is taken for none."""

from torch import Tensor

from deepstack_harness.revisions.reference import ReferenceBuffer


class LosesSingleToken(ReferenceBuffer):
    """Breaks R2, at N = 1 only."""

    def set(self, payload: Tensor) -> None:
        """One row is not copied, unless it has to grow first."""
        fits = payload.size(1) <= self.capacity
        super().set(payload)
        if fits and self._tokens_set == 1:
            for level in self._levels:
                level[0].zero_()
