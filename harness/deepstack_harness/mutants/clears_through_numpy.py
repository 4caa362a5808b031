"""Zeroes through numpy, which no graph records."""

from deepstack_harness.revisions.reference import ReferenceBuffer


class ClearsThroughNumpy(ReferenceBuffer):
    """Breaks R5 under graphs: a replay clears nothing."""

    def clear(self, tokens: int) -> None:
        """Right whenever Python runs."""
        rows = max(tokens, self._tokens_set)
        super().clear(min(tokens, 0))
        for level in self._levels:
            level.numpy()[:rows] = 0
