"""Mutants that break R4 capacity: rows lost or short where a call grows, resizes, or has no memory."""

import torch
from torch import Tensor

from deepstack_harness.contract.rules import Rule
from deepstack_harness.models.reference import ReferenceBuffer


class GrowthLosesPayload(ReferenceBuffer):
    """`resize` starts from zeros, as a growing `get` of vLLM 0.23.0 .. 0.33.0 does."""

    rule = Rule.R4

    def resize(self, tokens: int) -> None:
        super().resize(tokens)
        for level in self._levels:
            level.zero_()


class GrowthLosesLastToken(ReferenceBuffer):
    """`resize` loses the last row of the payload."""

    rule = Rule.R4

    def resize(self, tokens: int) -> None:
        super().resize(tokens)
        if self._tokens_set:
            for level in self._levels:
                level[self._tokens_set - 1].zero_()


class GrowthForgetsALevel(ReferenceBuffer):
    """`resize` loses the last level."""

    rule = Rule.R4

    def resize(self, tokens: int) -> None:
        super().resize(tokens)
        self._levels[-1].zero_()


class GrowthPaddingNotZeroed(ReferenceBuffer):
    """`resize` leaves values that nobody set in the rows behind the payload."""

    rule = Rule.R4

    def resize(self, tokens: int) -> None:
        super().resize(tokens)
        for level in self._levels:
            level[self._tokens_set :].fill_(1)  # not torch.empty: zeros would hide the fault


class GrowthOneRowShort(ReferenceBuffer):
    """The buffer grows to one row less than was asked for."""

    rule = Rule.R4

    def _make_room(self, tokens: int) -> None:
        if tokens > self.capacity:
            self.resize(tokens - 1)


class AnswersUpToCapacity(ReferenceBuffer):
    """`get` above the capacity returns only the rows there are, as in vLLM 0.11 .. 0.19.1."""

    rule = Rule.R4

    def get(self, tokens: int) -> tuple[Tensor, ...] | None:
        return super().get(min(tokens, self.capacity))


class SetCutToCapacity(ReferenceBuffer):
    """`set` drops the rows of a payload above the capacity, without an error."""

    rule = Rule.R4

    def set(self, payload: Tensor) -> None:
        super().set(payload[:, : self.capacity])


class ResizeCutsPayload(ReferenceBuffer):
    """`resize` below N cuts the payload, without an error."""

    rule = Rule.R4

    def resize(self, tokens: int) -> None:
        if tokens >= 0:
            self._tokens_set = min(self._tokens_set, tokens)
        super().resize(tokens)


class ShrinkingLosesPayload(ReferenceBuffer):
    """`resize` to fewer rows loses the payload, though the payload would fit."""

    rule = Rule.R4

    def resize(self, tokens: int) -> None:
        shrinks = tokens < self.capacity
        super().resize(tokens)
        if shrinks:
            for level in self._levels:
                level.zero_()


class RefusesGrowthAfterClearing(ReferenceBuffer):
    """`get` refuses to grow above the capacity, but drops the payload before it raises."""

    rule = Rule.R4

    def get(self, tokens: int) -> tuple[Tensor, ...] | None:
        if tokens > self.capacity:
            self.clear(0)
            raise ValueError(f"get of {tokens} tokens, but there are {self.capacity} rows")
        return super().get(tokens)


class SaysItsFirstCapacity(ReferenceBuffer):
    """Grows, and goes on to report the capacity that it was made with."""

    rule = Rule.R4
    fault = "stated capacity"

    def __init__(
        self, capacity: int, hidden: int, levels: int, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__(capacity, hidden, levels, dtype=dtype, device=device)
        self._made_with = capacity

    @property
    def capacity(self) -> int:
        return self._made_with

    def _make_room(self, tokens: int) -> None:
        if tokens > self._levels[0].size(0):
            self.resize(tokens)


class SaysRowsInUse(ReferenceBuffer):
    """The capacity is stated as the rows of the payload as soon as one was set."""

    rule = Rule.R4
    fault = "stated capacity"

    @property
    def capacity(self) -> int:
        return self._tokens_set or self._levels[0].size(0)

    def _make_room(self, tokens: int) -> None:
        if tokens > self._levels[0].size(0):
            self.resize(tokens)


class GrowsLevelByLevel(ReferenceBuffer):
    """`resize` replaces one level after the other: a failing allocation leaves levels of two sizes."""

    rule = Rule.R4
    shown_by = "inputs"
    fault = "lack of memory"

    def resize(self, tokens: int) -> None:
        if tokens < self._tokens_set:
            raise ValueError(f"resize to {tokens}")
        self.generation += 1
        for index, level in enumerate(self._levels):
            moved = level.new_zeros(tokens, level.size(1))
            moved[: self._tokens_set] = level[: self._tokens_set]
            self._levels[index] = moved


class ForgetsBeforeItGrows(ReferenceBuffer):
    """`resize` drops the payload before it allocates, so that a failing allocation loses it."""

    rule = Rule.R4
    shown_by = "inputs"
    fault = "lack of memory"

    def _make_room(self, tokens: int) -> None:
        if tokens > self.capacity:
            kept = [level[: self._tokens_set].clone() for level in self._levels]
            for level in self._levels:
                level[: self._tokens_set].zero_()
            self.resize(tokens)
            for level, rows in zip(self._levels, kept, strict=True):
                level[: self._tokens_set] = rows


class ResizeMakesNoRoom(ReferenceBuffer):
    """`resize` returns without making room, and calls above the old capacity are refused."""

    rule = Rule.R4
    shown_by = "inputs"
    fault = "stated capacity"

    def resize(self, tokens: int) -> None:
        if tokens < 0:
            raise ValueError(f"resize to {tokens}")

    def _make_room(self, tokens: int) -> None:
        if tokens > self.capacity:
            raise ValueError(f"{tokens} rows of {self.capacity}")


class CutsAtResizeBelowN(ReferenceBuffer):
    """`resize` below N is accepted, and rows behind it are answered as zeros."""

    rule = Rule.R4
    shown_by = "inputs"
    fault = "resize below N"

    def resize(self, tokens: int) -> None:
        if 0 <= tokens < self._tokens_set:
            for level in self._levels:
                level[tokens:].zero_()
            return
        super().resize(tokens)
