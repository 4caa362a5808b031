"""Mutants that break R5 clear: rows that are read after they were cleared."""

from torch import Tensor

from deepstack_harness.models.mutants.hooks import FaultyBuffer, Levels


class ClearsOneRowTooFew(FaultyBuffer):
    """`clear` leaves the last row of the payload."""

    def clear(self, tokens: int) -> None:
        row = self._tokens_set - 1
        kept = [level[row].clone() for level in self._levels] if self._tokens_set else []
        super().clear(tokens)
        for level, last in zip(self._levels, kept, strict=False):
            level[row] = last


class CounterResetTooEarly(FaultyBuffer):
    """`clear` resets its counter before it zeroes, so that n < N leaves rows (vLLM 0.33.0 does too)."""

    def clear(self, tokens: int) -> None:
        if tokens >= 0:
            self._tokens_set = 0
        super().clear(tokens)

    def after_set(self, payload: Tensor) -> None:
        self.zero(self._tokens_set)  # a row that a micro-batch left would be one of a replaced payload: R3


class ClearForgetsALevel(FaultyBuffer):
    """`clear` zeroes all levels but the last."""

    def clear(self, tokens: int) -> None:
        levels, self._levels = self._levels, self._levels[:-1]
        try:
            super().clear(tokens)
        finally:
            self._levels = levels


class ClearOfNothingIgnored(FaultyBuffer):
    """`clear(0)` is ignored, so that the payload stays."""

    def clear(self, tokens: int) -> None:
        if tokens:
            super().clear(tokens)


class ThirdClearIgnored(FaultyBuffer):
    """The third `clear` is ignored."""

    _clears = 0

    def clear(self, tokens: int) -> None:
        self._clears += tokens >= 0
        if self._clears != 3 or tokens < 0:
            super().clear(tokens)


class ResizeRevivesCleared(FaultyBuffer):
    """A shrinking `resize` brings back the rows that were cleared last, as reused storage would."""

    _ended: Levels = ()

    def clear(self, tokens: int) -> None:
        if self._tokens_set and tokens >= 0:
            self._ended = tuple(level[: self._tokens_set].clone() for level in self._levels)
        super().clear(tokens)

    def resize(self, tokens: int) -> None:
        shrinks = tokens <= self.capacity
        super().resize(tokens)
        if shrinks and not self._tokens_set:
            for level, rows in zip(self._levels, self._ended, strict=False):
                level[: len(rows)] = rows[:tokens]


class ClearsByCounter(FaultyBuffer):
    """`clear` zeroes only while its counter is above 0, as in vLLM 0.20.0 .. 0.33.0.

    No payload is set during a capture, so the graph records no zeroing.
    """

    arm = "eager/full"

    def clear(self, tokens: int) -> None:
        if tokens < 0 or self._tokens_set:
            super().clear(tokens)


class ClearsThroughNumpy(FaultyBuffer):
    """`clear` zeroes through numpy, which no graph records, so that a replay clears nothing."""

    arm = "eager/full"

    def clear(self, tokens: int) -> None:
        rows = max(tokens, self._tokens_set)
        super().clear(min(tokens, 0))
        for level in self._levels:
            level.numpy()[:rows] = 0


class RecordedClearOneRowShort(FaultyBuffer):
    """`clear` zeroes one row less than was requested, or the payload if that is longer.

    No payload is set during a capture, so the replay leaves the last row.
    """

    arm = "eager/full"

    def clear(self, tokens: int) -> None:
        super().clear(tokens - 1 if tokens > 0 else tokens)


class PartsNeverEnd(FaultyBuffer):
    """`clear` zeroes the requested rows, and never those after them, as every vLLM release does."""

    on_inputs = "micro-batches"

    def clear(self, tokens: int) -> None:
        if 0 < tokens < self._tokens_set:
            self.zero(0, tokens)
        else:
            super().clear(tokens)


class IgnoresClearAboveCapacity(FaultyBuffer):
    """Ignores a clear of more rows than there are, without an error."""

    on_inputs = "clear above"

    def clear(self, tokens: int) -> None:
        if tokens <= self.capacity:
            super().clear(tokens)


class ZeroRowsStay(FaultyBuffer):
    """`clear` ends at the last row that is not zero at the first level, and leaves later rows of others."""

    on_inputs = "equal rows"

    def clear(self, tokens: int) -> None:
        used = (self._levels[0][: self._tokens_set] != 0).any(1)
        constant = self._tokens_set > 1 and bool((self._levels[0][:1] == self._levels[0][1:2]).all())
        kept = (
            [level[: self._tokens_set].clone() for level in self._levels] if constant and used.any() else []
        )
        super().clear(tokens)
        for level, rows in zip(self._levels[1:], kept[1:], strict=False):
            level[: len(rows)] = rows

    def after_set(self, payload: Tensor) -> None:
        self.zero(self._tokens_set)  # a row that a micro-batch left would be one of a replaced payload: R3


class ClearsByAProduct(FaultyBuffer):
    """`clear` multiplies by zero, which leaves NaN, unless a micro-batch clears fewer rows."""

    on_inputs = "values"

    def clear(self, tokens: int) -> None:
        whole = tokens >= self._tokens_set
        kept = [level[: self._tokens_set if whole else 0] * 0 for level in self._levels]
        super().clear(tokens)
        for level, rows in zip(self._levels, kept, strict=True):
            level[: len(rows)] = rows


class LeavesRowsToTheNextGet(FaultyBuffer):
    """`clear` of a payload leaves its rows to the next `get`, which a replay of a full graph does not call.

    With nothing set it zeroes at once, so that a graph that holds get and clear is right: the fault needs a
    prompt without a graph, or in a piecewise one, before a full graph that only decodes.
    """

    arm = "eager/full_decode_only"
    _left = 0

    def get(self, tokens: int) -> Levels | None:
        self._zero_from(0)
        return super().get(tokens)

    def after_set(self, payload: Tensor) -> None:
        self._zero_from(self._tokens_set)

    def clear(self, tokens: int) -> None:
        if not self._tokens_set or tokens < 0:
            super().clear(tokens)
        else:
            self._left, self._tokens_set = max(tokens, self._tokens_set), 0

    def _zero_from(self, first: int) -> None:
        self.zero(first, max(first, self._left))
        self._left = 0
