"""A clear of a negative count does nothing."""

from deepstack_harness.revisions.reference import ReferenceBuffer


class AcceptsNegativeClear(ReferenceBuffer):
    """Breaks R8: it has to be refused."""

    def clear(self, tokens: int) -> None:
        """Nothing is said."""
        if tokens >= 0:
            super().clear(tokens)
