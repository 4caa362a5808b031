"""A shorter payload leaves the tail of the longer one in the last level."""

from torch import Tensor

from deepstack_harness.revisions.reference import ReferenceBuffer


class StaleLevelAfterShorterSet(ReferenceBuffer):
    """Breaks R3."""

    def set(self, payload: Tensor) -> None:
        """One level is forgotten when the tail is zeroed."""
        tokens = payload.size(1)
        tail = self._levels[-1][tokens : self._tokens_set].clone()
        super().set(payload)
        self._levels[-1][tokens : tokens + len(tail)] = tail
