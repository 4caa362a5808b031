"""A resize to a negative count does nothing."""

from deepstack_harness.revisions.reference import ReferenceBuffer


class AcceptsNegativeResize(ReferenceBuffer):
    """Breaks R8: it has to be refused."""

    def resize(self, tokens: int) -> None:
        """Nothing is said."""
        if tokens >= 0:
            super().resize(tokens)
