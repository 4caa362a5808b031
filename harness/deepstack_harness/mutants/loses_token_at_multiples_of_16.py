"""Loses a token where their number is a multiple of 16: the sizes of captured graphs."""

from torch import Tensor

from deepstack_harness.revisions.reference import ReferenceBuffer


class LosesTokenAtMultiplesOf16(ReferenceBuffer):
    """Breaks R2."""

    def set(self, payload: Tensor) -> None:
        """The last row is lost, unless it has to grow first."""
        hit = payload.size(1) <= self.capacity and payload.size(1) % 16 == 0
        super().set(payload)
        if hit and self._tokens_set:
            for level in self._levels:
                level[self._tokens_set - 1].zero_()
