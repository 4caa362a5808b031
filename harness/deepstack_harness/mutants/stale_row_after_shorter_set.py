"""A shorter payload leaves one row of the longer one before it."""

from torch import Tensor

from deepstack_harness.revisions.reference import ReferenceBuffer


class StaleRowAfterShorterSet(ReferenceBuffer):
    """Breaks R3: off by one at N."""

    def set(self, payload: Tensor) -> None:
        """The row right behind the payload stays."""
        tokens = payload.size(1)
        kept = [level[tokens].clone() for level in self._levels] if tokens < self._tokens_set else []
        super().set(payload)
        for level, row in zip(self._levels, kept, strict=False):
            level[tokens] = row
