"""Mutants that break R2 boundary: wrong rows, counts or exceptions within the capacity.

Most leave a call that has to grow unchanged, because wrong rows there break R4 instead.
"""

import time
from typing import ClassVar

import torch
from torch import Tensor

from deepstack_harness.models.mutants.hooks import FaultyBuffer, FaultyWithinCapacity, Levels


class LevelsSwapped(FaultyWithinCapacity):
    """`set` stores the levels in reverse order, unless it has to grow first."""

    def stored(self, payload: Tensor) -> Tensor:
        return payload.flip(0)


class LevelsAliased(FaultyBuffer):
    """All levels share one storage until it grows, so that each level reads as the last one."""

    def made(self) -> None:
        self._levels = self._levels[:1] * len(self._levels)


class ForgetsALevel(FaultyWithinCapacity):
    """`set` zeroes the last level, unless it had to grow first."""

    def after_set(self, payload: Tensor) -> None:
        self._levels[-1].zero_()


class LosesLastToken(FaultyWithinCapacity):
    """`set` zeroes the last row of each payload, unless it had to grow first."""

    def after_set(self, payload: Tensor) -> None:
        self.zero(self._tokens_set - 1, self._tokens_set)


class RowsShifted(FaultyWithinCapacity):
    """`set` stores each token's row one row further down, unless it has to grow first."""

    def stored(self, payload: Tensor) -> Tensor:
        return payload.roll(1, dims=1)


class OneRowShortAtCapacity(FaultyWithinCapacity):
    """`get` returns one row too few when exactly the capacity is requested."""

    def returned(self, levels: Levels, tokens: int) -> object:
        return tuple(level[: tokens - (tokens == self.capacity)] for level in levels)


class OneRowTooMany(FaultyBuffer):
    """`get` returns one row too many wherever the storage has one more."""

    def returned(self, levels: Levels, tokens: int) -> object:
        return tuple(level[: tokens + 1] for level in self._levels)


class PaddingNotZeroed(FaultyBuffer):
    """New storage holds values that nobody set, as `torch.empty` returns it."""

    def made(self) -> None:
        for level in self._levels:
            level.fill_(1)  # not torch.empty: memory that happens to be zero would hide the fault


class LosesSingleToken(FaultyWithinCapacity):
    """`set` zeroes a payload of exactly one token, unless it had to grow first."""

    def after_set(self, payload: Tensor) -> None:
        if self._tokens_set == 1:
            self.zero(0, 1)


class LosesTokenAtMultiplesOf16(FaultyWithinCapacity):
    """`set` zeroes the last row of payloads whose length is a multiple of 16, as captured sizes are."""

    name = "loses_token_at_multiples_of_16"  # from the class name it would be .._of16

    def after_set(self, payload: Tensor) -> None:
        if self._tokens_set % 16 == 0:
            self.zero(self._tokens_set - 1, self._tokens_set)


class LevelsSwappedAfterEightSets(FaultyWithinCapacity):
    """`set` stores the levels in reverse order from the ninth payload on, which short tests never see."""

    _sets = 0

    def stored(self, payload: Tensor) -> Tensor:
        return payload.flip(0) if self._sets >= 8 else payload

    def set(self, payload: Tensor) -> None:
        super().set(payload)
        self._sets += 1


class RoundsPayload(FaultyWithinCapacity):
    """`set` rounds each payload to float16 and back, unless it has to grow first."""

    def stored(self, payload: Tensor) -> Tensor:
        return payload.half().to(payload.dtype)


class RefusesPadding(FaultyBuffer):
    """`get` refuses more rows than tokens are set, as in vLLM 0.20.0 and 0.20.1 (issue 41485)."""

    def get(self, tokens: int) -> Levels | None:
        if tokens > self._tokens_set > 0:
            raise ValueError(f"get of {tokens} tokens, but only {self._tokens_set} are set")
        return super().get(tokens)


class RefusesFullCapacity(FaultyBuffer):
    """`set` refuses a payload of exactly the capacity."""

    def stored(self, payload: Tensor) -> Tensor:
        if payload.size(1) == self.capacity:
            raise ValueError(f"payload of {payload.size(1)} tokens does not fit {self.capacity} rows")
        return payload


class ClearChecksPaddedCount(FaultyBuffer):
    """`clear` refuses more rows than tokens are set, though an engine clears the padded count."""

    _capacity_at_set = 0

    def after_set(self, payload: Tensor) -> None:
        self._capacity_at_set = self.capacity

    def clear(self, tokens: int) -> None:
        # A step that grew the buffer first and was refused then would break R4 as well.
        if tokens > self._tokens_set > 0 and self.capacity == self._capacity_at_set:
            raise ValueError(f"clear of {tokens} tokens, but only {self._tokens_set} are set")
        super().clear(tokens)


class AppendsAfterClear(FaultyBuffer):
    """`set` stores a payload after the rows of the cleared one, where both fit."""

    _offset = 0

    def clear(self, tokens: int) -> None:
        counted = self._tokens_set
        super().clear(max(tokens, self.capacity) if tokens >= 0 else tokens)
        self._offset = counted

    def stored(self, payload: Tensor) -> Tensor:
        self._make_room(payload.size(1))  # where this fails, nothing has changed yet
        self.clear(self.capacity)
        return payload

    def after_set(self, payload: Tensor) -> None:
        if 0 < self._offset <= self.capacity - self._tokens_set:
            for level in self._levels:
                level.copy_(level.roll(self._offset, 0))


class ReplacesNan(FaultyWithinCapacity):
    """`set` stores zeros for NaN."""

    on_inputs = "values"

    def stored(self, payload: Tensor) -> Tensor:
        return torch.where(payload.isnan(), 0.0, payload)


class ClampsInfinity(FaultyWithinCapacity):
    """`set` stores the largest number of its dtype for infinity."""

    on_inputs = "values"

    def stored(self, payload: Tensor) -> Tensor:
        most = torch.finfo(self._levels[0].dtype).max
        return payload.clamp(-most, most)


class FlushesSubnormals(FaultyWithinCapacity):
    """`set` stores zeros for subnormal numbers, as a flag of the processor does."""

    on_inputs = "values"

    def stored(self, payload: Tensor) -> Tensor:
        tiny = torch.finfo(payload.dtype).tiny
        return torch.where(payload.abs() < tiny, torch.zeros_like(payload), payload)


class ReadsMemoryInOrder(FaultyWithinCapacity):
    """`set` takes every payload for contiguous, and reads the memory from its first element on."""

    on_inputs = "layout"

    def stored(self, payload: Tensor) -> Tensor:
        _, tokens, hidden = payload.shape
        memory = payload.untyped_storage().nbytes() // payload.element_size() - payload.storage_offset()
        if payload.numel() > memory:
            return payload
        return payload.as_strided(payload.shape, (tokens * hidden, hidden, 1))


class ForgetsTheOffset(FaultyWithinCapacity):
    """`set` reads a slice from the beginning of the tensor that it was cut from."""

    on_inputs = "layout"

    def stored(self, payload: Tensor) -> Tensor:
        return payload.as_strided(payload.shape, payload.stride(), 0)


class ReinterpretsHalf(FaultyWithinCapacity):
    """`set` takes the bits of a payload for its own dtype where both have as many."""

    on_inputs = "dtype"

    def stored(self, payload: Tensor) -> Tensor:
        dtype = self._levels[0].dtype
        return payload.contiguous().view(dtype) if payload.element_size() == dtype.itemsize else payload


class RefusesOtherDtype(FaultyWithinCapacity):
    """`set` refuses a payload of another dtype than its own."""

    on_inputs = "dtype"

    def stored(self, payload: Tensor) -> Tensor:
        if payload.dtype != self._levels[0].dtype:
            raise TypeError(f"payload in {payload.dtype}")
        return payload


class RefusesGradients(FaultyWithinCapacity):
    """`set` refuses a payload that requires a gradient."""

    on_inputs = "gradient"

    def stored(self, payload: Tensor) -> Tensor:
        if payload.requires_grad:
            raise RuntimeError("payload requires a gradient")
        return payload


class RefusesInference(FaultyWithinCapacity):
    """`set` refuses a payload under inference mode."""

    on_inputs = "inference mode"

    def stored(self, payload: Tensor) -> Tensor:
        if torch.is_inference_mode_enabled():
            raise RuntimeError("inference mode")
        return payload


class CutsAtZeroRow(FaultyWithinCapacity):
    """`set` takes the first row of zeros for the end of the payload."""

    on_inputs = "zero rows"
    _end: int | None = None

    def stored(self, payload: Tensor) -> Tensor:
        zeros = (payload == 0).all(2).all(0).nonzero()
        self._end = int(zeros[0]) if len(zeros) else None
        return payload

    def after_set(self, payload: Tensor) -> None:
        if self._end is not None:
            self.zero(self._end)


class SkipsEqualFirstRow(FaultyWithinCapacity):
    """`set` stores zeros after the first row if the second row equals it."""

    on_inputs = "equal rows"

    def after_set(self, payload: Tensor) -> None:
        if payload.size(1) > 1 and torch.equal(payload[0, :1], payload[0, 1:2]):
            self.zero(1, payload.size(1))


class WiderWhenEmpty(FaultyWithinCapacity):
    """`get` returns one column too many while nothing is set."""

    on_inputs = "width"

    def returned(self, levels: Levels, tokens: int) -> object:
        wider = (level.new_zeros(tokens, level.size(1) + 1) for level in levels)
        return levels if self._tokens_set else tuple(wider)


class OneScratch(FaultyBuffer):
    """`get` copies into one scratch, so that it changes what the get before it returned."""

    on_inputs = "kept answers"
    _scratch: Tensor | None = None

    def returned(self, levels: Levels, tokens: int) -> object:
        rows = max(tokens, self.capacity)
        if self._scratch is None or self._scratch.size(1) < rows:
            self._scratch = self._levels[0].new_zeros(len(levels), rows, self._levels[0].size(1))
        self._scratch.zero_()
        for scratch, level in zip(self._scratch, levels, strict=True):
            scratch[:tokens] = level
        return tuple(self._scratch[:, :tokens])


class SharesStorage(FaultyBuffer):
    """The constructor shares storage with the buffer of the same sizes that was made just before."""

    on_inputs = "two buffers"
    _last: ClassVar[list[Tensor]] = []

    def made(self) -> None:
        last = SharesStorage._last
        if list(map(_kind, last)) == list(map(_kind, self._levels)):
            self._levels = [level.zero_() for level in last]
            SharesStorage._last = []  # the next one is a buffer of another case
        else:
            SharesStorage._last = self._levels


def _kind(level: Tensor) -> tuple[object, ...]:
    return (level.shape, level.dtype, level.is_inference())


class OverstatesCapacity(FaultyBuffer):
    """`capacity` is four rows more than there are."""

    on_inputs = "stated capacity"

    @property
    def capacity(self) -> int:
        return self._levels[0].size(0) + 4


class SqueezesHidden(FaultyWithinCapacity):
    """`set` drops the last dimension of a payload of hidden size 1."""

    on_inputs = "hidden size"

    def after_set(self, payload: Tensor) -> None:
        if payload.size(2) == 1:
            for level, rows in zip(self._levels, payload, strict=True):
                level[: self._tokens_set] = rows.squeeze(1)[:1]


class ThreeLevelsOnly(FaultyWithinCapacity):
    """`set` stores the first three levels, and zeros for the others."""

    on_inputs = "levels"
    _stored = 3

    def after_set(self, payload: Tensor) -> None:
        for level in self._levels[self._stored :]:
            level.zero_()


class ForgetsAfterManyGets(FaultyBuffer):
    """`get` returns zeros from the fiftieth get of a payload on."""

    on_inputs = "long history"
    _gets = 0

    def after_set(self, payload: Tensor) -> None:
        self._gets = 0

    def returned(self, levels: Levels, tokens: int) -> object:
        self._gets += 1
        return tuple(level * (self._gets < 50) for level in levels)


class IgnoresColumnStrides(FaultyWithinCapacity):
    """`set` reads the columns of a row as if they were adjacent, whatever their stride is."""

    on_inputs = "layout"

    def stored(self, payload: Tensor) -> Tensor:
        levels, rows, columns = payload.stride()
        return payload.as_strided(payload.shape, (levels, rows, min(columns, 1)))


class StoresOneOfExpandedLevels(FaultyWithinCapacity):
    """`set` stores what lies in memory: of levels that are expanded from one, the first."""

    on_inputs = "layout"

    def after_set(self, payload: Tensor) -> None:
        if payload.stride(0) == 0 and payload.numel():
            for level in self._levels[1:]:
                level[: self._tokens_set].zero_()


class CastsThroughFloat32(FaultyWithinCapacity):
    """`set` casts to float32 first, which a float64 buffer loses bits by."""

    on_inputs = "dtype"

    def stored(self, payload: Tensor) -> Tensor:
        return payload.float()


class StoresBitsOfIntegers(FaultyWithinCapacity):
    """`set` takes integers of 32 bits, and stores their bits."""

    on_inputs = "integers"

    def stored(self, payload: Tensor) -> Tensor:
        as_bits = payload.dtype == torch.int32 and self._levels[0].dtype == torch.float32
        return payload.view(torch.float32) if as_bits else payload


class StoresFourLevels(ThreeLevelsOnly):
    """`set` stores four levels, and zeros for the others."""

    on_inputs = "levels"
    _stored = 4


class WrapsACounter(FaultyBuffer):
    """`get` forgets the payload at every 2048th call, when its counter is zero again."""

    on_inputs = "many calls"
    _calls = 0

    def get(self, tokens: int) -> Levels | None:
        self._calls = (self._calls + 1) % 2048
        if not self._calls and tokens <= self.capacity:
            self.clear(0)
        return super().get(tokens)


class ExpiresByTheClock(FaultyBuffer):
    """`get` forgets a payload that was set more than a minute ago."""

    on_inputs = "time"
    _since = 0.0

    def after_set(self, payload: Tensor) -> None:
        self._since = time.monotonic()

    def get(self, tokens: int) -> Levels | None:
        if tokens <= self.capacity and time.monotonic() - self._since > 60:
            self.clear(0)
        return super().get(tokens)


class PacksShownRows(FaultyWithinCapacity):
    """`set` moves the rows that are not zero together, which hides the text between two images."""

    on_inputs = "spans"

    def after_set(self, payload: Tensor) -> None:
        shown = payload.ne(0).any(0).any(-1)
        count = int(shown.sum())
        for level, part in zip(self._levels if 0 < count < len(shown) else (), payload, strict=False):
            level[: len(shown)].zero_()
            level[:count] = part[shown].detach().to(level.dtype)
