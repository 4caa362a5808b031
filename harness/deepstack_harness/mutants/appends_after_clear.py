"""Clear does not reset the count, and the next payload is put behind it."""

from torch import Tensor

from deepstack_harness.revisions.reference import ReferenceBuffer


class AppendsAfterClear(ReferenceBuffer):
    """Breaks R2: rows come late."""

    _offset = 0

    def clear(self, tokens: int) -> None:
        """All rows are zeroed, the count alone stays."""
        counted = self._tokens_set
        super().clear(max(tokens, self.capacity) if tokens >= 0 else tokens)
        self._offset = counted

    def set(self, payload: Tensor) -> None:
        """Where both fit behind each other."""
        self._check(payload)
        self.clear(self.capacity)
        super().set(payload)
        if self._offset + self._tokens_set <= self.capacity:
            for level in self._levels:
                level.copy_(level.roll(self._offset, 0))
