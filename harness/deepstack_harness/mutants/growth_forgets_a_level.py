"""Resizing copies all levels but the last."""

from deepstack_harness.revisions.reference import ReferenceBuffer


class GrowthForgetsALevel(ReferenceBuffer):
    """Breaks R4."""

    def resize(self, tokens: int) -> None:
        """One level starts from zeros."""
        super().resize(tokens)
        self._levels[-1].zero_()
