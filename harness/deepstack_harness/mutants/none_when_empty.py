"""Answers None while nothing is set: the fault of vLLM issue 43602."""

from torch import Tensor

from deepstack_harness.revisions.reference import ReferenceBuffer


class NoneWhenEmpty(ReferenceBuffer):
    """Breaks R1."""

    def get(self, tokens: int) -> tuple[Tensor, ...] | None:
        """None instead of zeros."""
        answer = super().get(tokens)  # a bad count is refused all the same
        return answer if self._tokens_set else None
