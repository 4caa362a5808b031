"""Puts one level of each payload into a new tensor."""

from torch import Tensor

from deepstack_harness.revisions.reference import ReferenceBuffer


class MovesOneLevel(ReferenceBuffer):
    """Breaks R6."""

    def set(self, payload: Tensor) -> None:
        """The right rows, one level of them in new storage, unannounced."""
        self._check(payload)
        self._levels = [*self._levels[:-1], self._levels[-1].clone()]
        super().set(payload)
