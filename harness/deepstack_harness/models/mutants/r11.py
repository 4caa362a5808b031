"""Mutants that break R11 graphs: get returns the right values, at the cost of further graphs."""

import torch
from torch import Tensor

from deepstack_harness.models.mutants.hooks import FaultyBuffer, Levels


class ListsAndTuples(FaultyBuffer):
    """Every third `get` returns a list instead of a tuple: another type is another graph."""

    arm = "eager/stock"
    _gets = 0

    def returned(self, levels: Levels, tokens: int) -> object:
        self._gets += 1
        return list(levels) if self._gets % 3 == 0 else levels


class StrideFollowsCapacity(FaultyBuffer):
    """Levels are stored column by column, so that each capacity needs its own graph."""

    arm = "eager/stock"

    def made(self) -> None:
        self._levels = [level.t().contiguous().t() for level in self._levels]

    after_resize = made


class GradientsWhenSet(FaultyBuffer):
    """`get` returns tensors that require gradients while a payload is set, and not while it is empty."""

    arm = "eager/stock"

    def returned(self, levels: Levels, tokens: int) -> object:
        return tuple(level.detach().requires_grad_() for level in levels) if self._tokens_set else levels


class EmptyExpanded(FaultyBuffer):
    """`get` returns one zero, expanded, while nothing is set: other strides."""

    on_inputs = "strides"

    def returned(self, levels: Levels, tokens: int) -> object:
        empty = (level.new_zeros(1, 1).expand(level.shape) for level in levels)
        return levels if self._tokens_set else tuple(empty)


class GradientFollowsPayload(FaultyBuffer):
    """`get` returns tensors that require a gradient if the payload did."""

    on_inputs = "gradient"
    _gradient = False

    def after_set(self, payload: Tensor) -> None:
        self._gradient = payload.requires_grad

    def returned(self, levels: Levels, tokens: int) -> object:
        return tuple(level.detach().requires_grad_() for level in levels) if self._gradient else levels


# Every class statement of this file is a mutant.
_OtherTuple = type("tuple", (tuple,), {"__doc__": "A tuple of another class that has the same name."})


class AnswersAnotherTuple(FaultyBuffer):
    """`get` returns a subclass of tuple that is called tuple while there is a payload."""

    on_inputs = "container"

    def returned(self, levels: Levels, tokens: int) -> object:
        return _OtherTuple(levels) if self._tokens_set else levels


class AnswersParameters(FaultyBuffer):
    """`get` returns parameters where all rows are requested, and tensors otherwise."""

    on_inputs = "tensor type"

    def returned(self, levels: Levels, tokens: int) -> object:
        if tokens < self.capacity:
            return levels
        return tuple(torch.nn.Parameter(level, requires_grad=False) for level in levels)


class SpreadsASingleRow(FaultyBuffer):
    """`get` returns a single row with another stride between its columns."""

    on_inputs = "strides"

    def returned(self, levels: Levels, tokens: int) -> object:
        return tuple(level.repeat_interleave(2, 1)[:, ::2] for level in levels) if tokens == 1 else levels


class TurnsNoRows(FaultyBuffer):
    """`get` of 0 rows returns other strides while there is a payload."""

    on_inputs = "strides"

    def returned(self, levels: Levels, tokens: int) -> object:
        if tokens or not self._tokens_set:
            return levels
        return tuple(level.new_empty(level.size(1), 2).t()[:0] for level in levels)
