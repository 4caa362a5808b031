"""Answers require gradients while there is a payload."""

from torch import Tensor

from deepstack_harness.revisions.reference import ReferenceBuffer


class GradientsWhenSet(ReferenceBuffer):
    """Breaks R11: the empty answer was compiled without."""

    def get(self, tokens: int) -> tuple[Tensor, ...] | None:
        """The same storage, marked."""
        answer = super().get(tokens)
        if answer is None or not self._tokens_set:
            return answer
        return tuple(level.detach().requires_grad_() for level in answer)
