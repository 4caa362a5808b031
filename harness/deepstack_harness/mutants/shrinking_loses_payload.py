"""A resize to fewer rows drops the payload, though it would fit."""

from deepstack_harness.revisions.reference import ReferenceBuffer


class ShrinkingLosesPayload(ReferenceBuffer):
    """Breaks R4; growth keeps it."""

    def resize(self, tokens: int) -> None:
        """Zeros where there are fewer rows than before."""
        shrinks = tokens < self.capacity
        super().resize(tokens)
        if shrinks:
            for level in self._levels:
                level.zero_()
