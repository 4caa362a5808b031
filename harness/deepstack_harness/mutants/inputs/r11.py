"""Mutants that break R11 graphs by what guards see of an answer."""

from torch import Tensor

from deepstack_harness.contract.rules import Rule
from deepstack_harness.revisions.reference import ReferenceBuffer


class EmptyExpanded(ReferenceBuffer):
    """Answers with one zero, expanded, while nothing is set: other strides."""

    rule = Rule.R11
    fault = "strides"

    def get(self, tokens: int) -> tuple[Tensor, ...] | None:
        answer = super().get(tokens)
        if self._tokens_set or answer is None:
            return answer
        return tuple(level.new_zeros(1, 1).expand(level.shape) for level in answer)


class GradientFollowsPayload(ReferenceBuffer):
    """Answers with tensors that require a gradient if the payload did."""

    rule = Rule.R11
    fault = "gradient"
    _gradient = False

    def set(self, payload: Tensor) -> None:
        super().set(payload)
        self._gradient = payload.requires_grad

    def get(self, tokens: int) -> tuple[Tensor, ...] | None:
        answer = super().get(tokens)
        if answer is None or not self._gradient:
            return answer
        return tuple(level.detach().requires_grad_() for level in answer)
