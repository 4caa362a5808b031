"""A shorter payload leaves the tail of a longer one before it."""

from torch import Tensor

from deepstack_harness.revisions.reference import ReferenceBuffer


class StaleAfterShorterSet(ReferenceBuffer):
    """Breaks R3."""

    def set(self, payload: Tensor) -> None:
        """Forget how long the last payload was before copying."""
        tokens = self._check(payload)
        self._make_room(tokens)
        self._tokens_set = 0
        super().set(payload)
