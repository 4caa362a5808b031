"""Gives a row more than was asked for, where it has one."""

from torch import Tensor

from deepstack_harness.revisions.reference import ReferenceBuffer


class OneRowTooMany(ReferenceBuffer):
    """Breaks R2: off by one at P."""

    def get(self, tokens: int) -> tuple[Tensor, ...] | None:
        """P + 1 rows below the capacity."""
        answer = super().get(tokens)
        return answer and tuple(level[: tokens + 1] for level in self._levels)
