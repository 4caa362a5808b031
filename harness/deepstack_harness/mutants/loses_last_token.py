"""The last token of a payload is lost, unless it has to grow first."""

from torch import Tensor

from deepstack_harness.revisions.reference import ReferenceBuffer


class LosesLastToken(ReferenceBuffer):
    """Breaks R2: off by one at N."""

    def set(self, payload: Tensor) -> None:
        """N - 1 rows."""
        fits = payload.size(1) <= self.capacity
        super().set(payload)
        if fits and self._tokens_set:
            for level in self._levels:
                level[self._tokens_set - 1].zero_()
