"""Shrinking brings back what was cleared last, as storage that is used again does."""

from torch import Tensor

from deepstack_harness.revisions.reference import ReferenceBuffer


class ResizeRevivesCleared(ReferenceBuffer):
    """Breaks R5: stale rows after a resize."""

    _ended: tuple[Tensor, ...] = ()

    def clear(self, tokens: int) -> None:
        """Remember the rows that end here."""
        if self._tokens_set and tokens >= 0:
            self._ended = tuple(level[: self._tokens_set].clone() for level in self._levels)
        super().clear(tokens)

    def resize(self, tokens: int) -> None:
        """Fewer rows or as many, and nothing set: rows from before."""
        shrinks = tokens <= self.capacity
        super().resize(tokens)
        if shrinks and not self._tokens_set:
            for level, rows in zip(self._levels, self._ended, strict=False):
                level[: len(rows)] = rows[:tokens]
