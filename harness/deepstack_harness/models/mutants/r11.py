"""Mutants that break R11 graphs: their answers have the right values, and cost further graphs."""

import torch
from torch import Tensor

from deepstack_harness.contract.rules import Rule
from deepstack_harness.models.reference import ReferenceBuffer


class ListsAndTuples(ReferenceBuffer):
    """Every third `get` returns a list instead of a tuple: another type is another graph."""

    rule = Rule.R11
    arm = "eager/stock"
    _gets = 0

    def get(self, tokens: int) -> tuple[Tensor, ...] | None:
        answer = super().get(tokens)
        self._gets += 1
        return list(answer) if answer and self._gets % 3 == 0 else answer  # type: ignore[return-value]  # the fault


class StrideFollowsCapacity(ReferenceBuffer):
    """Levels are stored column by column, so that each capacity needs its own graph."""

    rule = Rule.R11
    arm = "eager/stock"

    def __init__(
        self, capacity: int, hidden: int, levels: int, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__(capacity, hidden, levels, dtype=dtype, device=device)
        self._levels = [_column_by_column(level) for level in self._levels]

    def resize(self, tokens: int) -> None:
        super().resize(tokens)
        self._levels = [_column_by_column(level) for level in self._levels]


def _column_by_column(level: Tensor) -> Tensor:
    """Return an equal tensor (rows, hidden) whose memory is laid out as (hidden, rows)."""
    return level.t().contiguous().t()


class GradientsWhenSet(ReferenceBuffer):
    """`get` returns tensors that require gradients while a payload is set, and not while it is empty."""

    rule = Rule.R11
    arm = "eager/stock"

    def get(self, tokens: int) -> tuple[Tensor, ...] | None:
        answer = super().get(tokens)
        if answer is None or not self._tokens_set:
            return answer
        return tuple(level.detach().requires_grad_() for level in answer)


class EmptyExpanded(ReferenceBuffer):
    """Answers with one zero, expanded, while nothing is set: other strides."""

    rule = Rule.R11
    shown_by = "inputs"
    fault = "strides"

    def get(self, tokens: int) -> tuple[Tensor, ...] | None:
        answer = super().get(tokens)
        if self._tokens_set or answer is None:
            return answer
        return tuple(level.new_zeros(1, 1).expand(level.shape) for level in answer)


class GradientFollowsPayload(ReferenceBuffer):
    """Answers with tensors that require a gradient if the payload did."""

    rule = Rule.R11
    shown_by = "inputs"
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


# Every class statement of this file is a mutant.
_OtherTuple = type("tuple", (tuple,), {"__doc__": "A tuple of another class that has the same name."})


class AnswersAnotherTuple(ReferenceBuffer):
    """`get` answers a subclass of tuple that is called tuple while there is a payload."""

    rule = Rule.R11
    shown_by = "inputs"
    fault = "container"

    def get(self, tokens: int) -> tuple[Tensor, ...] | None:
        answer = super().get(tokens) or ()
        return _OtherTuple(answer) if self._tokens_set else answer


class AnswersParameters(ReferenceBuffer):
    """`get` answers parameters where it is asked for all rows, and tensors where it is not."""

    rule = Rule.R11
    shown_by = "inputs"
    fault = "tensor type"

    def get(self, tokens: int) -> tuple[Tensor, ...] | None:
        answer = super().get(tokens) or ()
        if tokens < self.capacity:
            return answer
        return tuple(torch.nn.Parameter(level, requires_grad=False) for level in answer)


class SpreadsASingleRow(ReferenceBuffer):
    """`get` answers a single row of another stride between its columns."""

    rule = Rule.R11
    shown_by = "inputs"
    fault = "strides"

    def get(self, tokens: int) -> tuple[Tensor, ...] | None:
        answer = super().get(tokens) or ()
        if tokens != 1:
            return answer
        return tuple(level.repeat_interleave(2, 1)[:, ::2] for level in answer)


class TurnsNoRows(ReferenceBuffer):
    """`get` answers no rows of other strides while there is a payload."""

    rule = Rule.R11
    shown_by = "inputs"
    fault = "strides"

    def get(self, tokens: int) -> tuple[Tensor, ...] | None:
        answer = super().get(tokens) or ()
        if tokens or not self._tokens_set:
            return answer
        return tuple(level.new_empty(level.size(1), 2).t()[:0] for level in answer)
