"""Two versions of a buffer whose storage grows in blocks."""

from block_buffers import BLOCK
from deepstack_harness.models.reference import ReferenceBuffer


class BlockBuffer(ReferenceBuffer):
    """Version 1.1: grows to whole blocks."""

    def _make_room(self, tokens: int) -> None:
        if tokens > self.capacity:
            self.resize(-(-tokens // BLOCK) * BLOCK)


class BlockBuffer10(ReferenceBuffer):
    """Version 1.0: grows to the exact count, and leaves the rows of the last block when it is cleared."""

    def clear(self, tokens: int) -> None:
        whole = self._tokens_set // BLOCK * BLOCK
        kept = [level[whole : self._tokens_set].clone() for level in self._levels]
        super().clear(tokens)
        for level, rows in zip(self._levels, kept, strict=True):
            level[whole : whole + len(rows)] = rows
