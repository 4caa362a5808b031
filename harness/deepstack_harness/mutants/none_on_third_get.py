"""Answers None once: at the third call."""

from torch import Tensor

from deepstack_harness.revisions.reference import ReferenceBuffer


class NoneOnThirdGet(ReferenceBuffer):
    """Breaks R1."""

    _gets = 0

    def get(self, tokens: int) -> tuple[Tensor, ...] | None:
        """Two right answers, one None, and right ones again."""
        answer = super().get(tokens)
        self._gets += 1
        return None if self._gets == 3 else answer
