"""Refuses a payload with a wrong number of levels, but only after copying those there are."""

from torch import Tensor

from deepstack_harness.revisions.reference import ReferenceBuffer


class RejectsAfterCopying(ReferenceBuffer):
    """Breaks R8: the call raises, and the state has changed."""

    def set(self, payload: Tensor) -> None:
        """Copy first, check later."""
        for level, rows in zip(self._levels, payload, strict=False):
            if rows.size(1) == level.size(1):
                level[: len(rows)] = rows[: self.capacity]
        super().set(payload)
