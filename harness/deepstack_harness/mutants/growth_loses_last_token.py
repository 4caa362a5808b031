"""Resizing keeps one row too few."""

from deepstack_harness.revisions.reference import ReferenceBuffer


class GrowthLosesLastToken(ReferenceBuffer):
    """Breaks R4: off by one at N."""

    def resize(self, tokens: int) -> None:
        """N - 1 rows."""
        super().resize(tokens)
        if self._tokens_set:
            for level in self._levels:
                level[self._tokens_set - 1].zero_()
