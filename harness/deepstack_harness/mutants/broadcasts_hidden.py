"""A payload of hidden size 1 is broadcast instead of refused, as every vLLM release does."""

from torch import Tensor

from deepstack_harness.revisions.reference import ReferenceBuffer


class BroadcastsHidden(ReferenceBuffer):
    """Breaks R8."""

    def set(self, payload: Tensor) -> None:
        """Stretch what has one column."""
        hidden = self._levels[0].size(1)
        super().set(payload.expand(-1, -1, hidden) if payload.size(2) == 1 else payload)
