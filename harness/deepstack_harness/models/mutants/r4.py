"""Mutants that break R4 capacity: rows lost or short where a call grows, resizes, or has no memory."""

from torch import Tensor

from deepstack_harness.models.mutants.hooks import FaultyBuffer, Levels


class GrowthLosesPayload(FaultyBuffer):
    """`resize` starts from zeros, as a growing `get` of vLLM 0.23.0 .. 0.33.0 does."""

    def after_resize(self) -> None:
        self.zero(0)


class GrowthLosesLastToken(FaultyBuffer):
    """`resize` loses the last row of the payload."""

    def after_resize(self) -> None:
        self.zero(self._tokens_set - 1, self._tokens_set)


class GrowthForgetsALevel(FaultyBuffer):
    """`resize` loses the last level."""

    def after_resize(self) -> None:
        self._levels[-1].zero_()


class GrowthPaddingNotZeroed(FaultyBuffer):
    """`resize` leaves values that nobody set in the rows after the payload."""

    def after_resize(self) -> None:
        for level in self._levels:
            level[self._tokens_set :].fill_(1)  # not torch.empty: zeros would hide the fault


class GrowthOneRowShort(FaultyBuffer):
    """The buffer grows to one row less than was requested."""

    def _make_room(self, tokens: int) -> None:
        if tokens > self.capacity:
            self.resize(tokens - 1)


class AnswersUpToCapacity(FaultyBuffer):
    """`get` above the capacity returns only the rows there are, as in vLLM 0.11 .. 0.19.1."""

    def get(self, tokens: int) -> Levels | None:
        return super().get(min(tokens, self.capacity))


class SetCutToCapacity(FaultyBuffer):
    """`set` drops the rows of a payload above the capacity, without an error."""

    def set(self, payload: Tensor) -> None:
        super().set(payload[:, : self.capacity])


class ResizeCutsPayload(FaultyBuffer):
    """`resize` below N cuts the payload, without an error."""

    def resize(self, tokens: int) -> None:
        if tokens >= 0:
            self._tokens_set = min(self._tokens_set, tokens)
        super().resize(tokens)


class ShrinkingLosesPayload(FaultyBuffer):
    """`resize` to fewer rows loses the payload, though the payload would fit."""

    def resize(self, tokens: int) -> None:
        shrinks = tokens < self.capacity
        super().resize(tokens)
        if shrinks:
            self.zero(0)


class RefusesGrowthAfterClearing(FaultyBuffer):
    """`get` refuses to grow above the capacity, but drops the payload before it raises."""

    def get(self, tokens: int) -> Levels | None:
        if tokens > self.capacity:
            self.clear(0)
            raise ValueError(f"get of {tokens} tokens, but there are {self.capacity} rows")
        return super().get(tokens)


class SaysItsFirstCapacity(FaultyBuffer):
    """Grows, and goes on to report the capacity that it was made with."""

    fault = "stated capacity"

    def made(self) -> None:
        self._made_with = self._levels[0].size(0)

    @property
    def capacity(self) -> int:
        return self._made_with

    def _make_room(self, tokens: int) -> None:
        if tokens > self._levels[0].size(0):
            self.resize(tokens)


class SaysRowsInUse(SaysItsFirstCapacity):
    """The capacity is stated as the rows of the payload as soon as one was set."""

    fault = "stated capacity"

    @property
    def capacity(self) -> int:
        return self._tokens_set or self._levels[0].size(0)


class GrowsLevelByLevel(FaultyBuffer):
    """`resize` replaces one level after the other: a failing allocation leaves levels of two sizes."""

    on_inputs = "lack of memory"

    def resize(self, tokens: int) -> None:
        if tokens < self._tokens_set:
            raise ValueError(f"resize to {tokens}")
        self.generation += 1
        for index, level in enumerate(self._levels):
            moved = level.new_zeros(tokens, level.size(1))
            moved[: self._tokens_set] = level[: self._tokens_set]
            self._levels[index] = moved


class ForgetsBeforeItGrows(FaultyBuffer):
    """`resize` drops the payload before it allocates, so that a failing allocation loses it."""

    on_inputs = "lack of memory"

    def _make_room(self, tokens: int) -> None:
        if tokens > self.capacity:
            kept = [level[: self._tokens_set].clone() for level in self._levels]
            self.zero(0, self._tokens_set)
            self.resize(tokens)
            for level, rows in zip(self._levels, kept, strict=True):
                level[: self._tokens_set] = rows


class ResizeMakesNoRoom(FaultyBuffer):
    """`resize` returns without making room, and calls above the old capacity are refused."""

    on_inputs = "stated capacity"

    def resize(self, tokens: int) -> None:
        if tokens < 0:
            raise ValueError(f"resize to {tokens}")

    def _make_room(self, tokens: int) -> None:
        if tokens > self.capacity:
            raise ValueError(f"{tokens} rows of {self.capacity}")


class CutsAtResizeBelowN(FaultyBuffer):
    """`resize` below N is accepted, and get returns zeros for the rows after it."""

    on_inputs = "resize below N"

    def resize(self, tokens: int) -> None:
        if 0 <= tokens < self._tokens_set:
            self.zero(tokens)
        else:
            super().resize(tokens)
