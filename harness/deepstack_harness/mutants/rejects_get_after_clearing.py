"""Refuses a negative count, but only after dropping the payload."""

from torch import Tensor

from deepstack_harness.revisions.reference import ReferenceBuffer


class RejectsGetAfterClearing(ReferenceBuffer):
    """Breaks R8: the call raises, and the state has changed."""

    def get(self, tokens: int) -> tuple[Tensor, ...] | None:
        """Clear first, check later."""
        if tokens < 0:
            self.clear(0)
        return super().get(tokens)
