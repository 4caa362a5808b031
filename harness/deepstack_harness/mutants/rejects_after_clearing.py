"""Refuses a wrong payload, but only after dropping the one it held."""

from torch import Tensor

from deepstack_harness.revisions.reference import ReferenceBuffer


class RejectsAfterClearing(ReferenceBuffer):
    """Breaks R8: the call raises, and the state has changed."""

    def set(self, payload: Tensor) -> None:
        """Clear first, check later."""
        self.clear(0)
        super().set(payload)
