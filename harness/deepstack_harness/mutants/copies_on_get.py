"""Hands out copies, at other addresses than a captured graph reads."""

from torch import Tensor

from deepstack_harness.revisions.reference import ReferenceBuffer


class CopiesOnGet(ReferenceBuffer):
    """Breaks R6."""

    def get(self, tokens: int) -> tuple[Tensor, ...] | None:
        """The right rows, in new storage."""
        answer = super().get(tokens)
        return answer and tuple(level.clone() for level in answer)
