"""Answers an empty tuple while nothing is set."""

from torch import Tensor

from deepstack_harness.revisions.reference import ReferenceBuffer


class NoLevelsWhenEmpty(ReferenceBuffer):
    """Breaks R1."""

    def get(self, tokens: int) -> tuple[Tensor, ...] | None:
        """No levels instead of zeros."""
        answer = super().get(tokens)
        return answer if self._tokens_set else ()
