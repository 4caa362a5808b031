"""Clear zeroes one row less than asked for, or the payload if that is longer."""

from deepstack_harness.revisions.reference import ReferenceBuffer


class RecordedClearOneRowShort(ReferenceBuffer):
    """Breaks R5 under graphs: the capture has no payload, and a replay leaves its last row."""

    def clear(self, tokens: int) -> None:
        """Off by one at P."""
        super().clear(tokens - 1 if tokens > 0 else tokens)
