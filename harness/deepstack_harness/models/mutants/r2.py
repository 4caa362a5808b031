"""Mutants that break R2 boundary: wrong rows, counts or exceptions within the capacity.

Most leave a call that has to grow unchanged, because wrong rows there break R4 instead.
"""

import time
from typing import ClassVar

import torch
from torch import Tensor

from deepstack_harness.contract.rules import Rule
from deepstack_harness.models.reference import ReferenceBuffer


class LevelsSwapped(ReferenceBuffer):
    """`set` stores the levels in reverse order, unless it has to grow first."""

    rule = Rule.R2

    def set(self, payload: Tensor) -> None:
        grows = payload.size(1) > self.capacity
        super().set(payload if grows else payload.flip(0))


class LevelsAliased(ReferenceBuffer):
    """All levels share one storage until it grows, so that each level reads as the last one."""

    rule = Rule.R2

    def __init__(
        self, capacity: int, hidden: int, levels: int, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__(capacity, hidden, levels, dtype=dtype, device=device)
        self._levels = self._levels[:1] * levels


class ForgetsALevel(ReferenceBuffer):
    """`set` zeroes the last level, unless it had to grow first."""

    rule = Rule.R2

    def set(self, payload: Tensor) -> None:
        fits = payload.size(1) <= self.capacity
        super().set(payload)
        if fits:
            self._levels[-1].zero_()


class LosesLastToken(ReferenceBuffer):
    """`set` zeroes the last row of each payload, unless it had to grow first."""

    rule = Rule.R2

    def set(self, payload: Tensor) -> None:
        fits = payload.size(1) <= self.capacity
        super().set(payload)
        if fits and self._tokens_set:
            for level in self._levels:
                level[self._tokens_set - 1].zero_()


class RowsShifted(ReferenceBuffer):
    """`set` stores each token's row one row further down, unless it has to grow first."""

    rule = Rule.R2

    def set(self, payload: Tensor) -> None:
        fits = payload.size(1) <= self.capacity
        super().set(payload.roll(1, dims=1) if fits else payload)


class OneRowShortAtCapacity(ReferenceBuffer):
    """`get` returns one row too few when it is asked for exactly the capacity."""

    rule = Rule.R2

    def get(self, tokens: int) -> tuple[Tensor, ...] | None:
        rows = tokens - (tokens == self.capacity)  # compared before a get that grows
        answer = super().get(tokens)
        return answer and tuple(level[:rows] for level in answer)


class OneRowTooMany(ReferenceBuffer):
    """`get` returns one row too many wherever the storage has one more."""

    rule = Rule.R2

    def get(self, tokens: int) -> tuple[Tensor, ...] | None:
        answer = super().get(tokens)
        return answer and tuple(level[: tokens + 1] for level in self._levels)


class PaddingNotZeroed(ReferenceBuffer):
    """New storage holds values that nobody set, as `torch.empty` returns it."""

    rule = Rule.R2

    def __init__(
        self, capacity: int, hidden: int, levels: int, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__(capacity, hidden, levels, dtype=dtype, device=device)
        for level in self._levels:
            level.fill_(1)  # not torch.empty: memory that happens to be zero would hide the fault


class LosesSingleToken(ReferenceBuffer):
    """`set` zeroes a payload of exactly one token, unless it had to grow first."""

    rule = Rule.R2

    def set(self, payload: Tensor) -> None:
        fits = payload.size(1) <= self.capacity
        super().set(payload)
        if fits and self._tokens_set == 1:
            for level in self._levels:
                level[0].zero_()


class LosesTokenAtMultiplesOf16(ReferenceBuffer):
    """`set` zeroes the last row of payloads whose length is a multiple of 16, as captured sizes are."""

    name = "loses_token_at_multiples_of_16"  # the class name alone would read .._of16
    rule = Rule.R2

    def set(self, payload: Tensor) -> None:
        hit = payload.size(1) <= self.capacity and payload.size(1) % 16 == 0
        super().set(payload)
        if hit and self._tokens_set:
            for level in self._levels:
                level[self._tokens_set - 1].zero_()


class LevelsSwappedAfterEightSets(ReferenceBuffer):
    """`set` stores the levels in reverse order from the ninth payload on, which short tests never see."""

    rule = Rule.R2
    _sets = 0

    def set(self, payload: Tensor) -> None:
        fits = payload.size(1) <= self.capacity
        super().set(payload.flip(0) if fits and self._sets >= 8 else payload)
        self._sets += 1


class RoundsPayload(ReferenceBuffer):
    """`set` rounds each payload to float16 and back, unless it has to grow first."""

    rule = Rule.R2

    def set(self, payload: Tensor) -> None:
        fits = payload.size(1) <= self.capacity
        super().set(payload.half().to(payload.dtype) if fits else payload)


class RefusesPadding(ReferenceBuffer):
    """`get` refuses more rows than tokens are set, as in vLLM 0.20.0 and 0.20.1 (issue 41485)."""

    rule = Rule.R2

    def get(self, tokens: int) -> tuple[Tensor, ...] | None:
        if tokens > self._tokens_set > 0:
            raise ValueError(f"get of {tokens} tokens, but only {self._tokens_set} are set")
        return super().get(tokens)


class RefusesFullCapacity(ReferenceBuffer):
    """`set` refuses a payload of exactly the capacity."""

    rule = Rule.R2

    def set(self, payload: Tensor) -> None:
        if self._check(payload) == self.capacity:
            raise ValueError(f"payload of {payload.size(1)} tokens does not fit {self.capacity} rows")
        super().set(payload)


class ClearChecksPaddedCount(ReferenceBuffer):
    """`clear` refuses more rows than tokens are set, though an engine clears the padded count."""

    rule = Rule.R2
    _capacity_at_set = 0

    def set(self, payload: Tensor) -> None:
        super().set(payload)
        self._capacity_at_set = self.capacity

    def clear(self, tokens: int) -> None:
        # A step that grew the buffer first and was refused then would break R4 as well.
        if tokens > self._tokens_set > 0 and self.capacity == self._capacity_at_set:
            raise ValueError(f"clear of {tokens} tokens, but only {self._tokens_set} are set")
        super().clear(tokens)


class AppendsAfterClear(ReferenceBuffer):
    """`set` stores a payload behind the rows of the cleared one, where both fit."""

    rule = Rule.R2
    _offset = 0

    def clear(self, tokens: int) -> None:
        counted = self._tokens_set
        super().clear(max(tokens, self.capacity) if tokens >= 0 else tokens)
        self._offset = counted

    def set(self, payload: Tensor) -> None:
        self._make_room(self._check(payload))  # where this fails, nothing has changed yet
        self.clear(self.capacity)
        super().set(payload)
        if 0 < self._offset <= self.capacity - self._tokens_set:
            for level in self._levels:
                level.copy_(level.roll(self._offset, 0))


class ReplacesNan(ReferenceBuffer):
    """`set` stores zeros for NaN."""

    rule = Rule.R2
    shown_by = "inputs"
    fault = "values"

    def set(self, payload: Tensor) -> None:
        super().set(torch.where(payload.isnan(), 0.0, payload) if _fits(self, payload) else payload)


class ClampsInfinity(ReferenceBuffer):
    """`set` stores the largest number of its dtype for infinity."""

    rule = Rule.R2
    shown_by = "inputs"
    fault = "values"

    def set(self, payload: Tensor) -> None:
        most = torch.finfo(self._levels[0].dtype).max
        super().set(payload.clamp(-most, most) if _fits(self, payload) else payload)


class FlushesSubnormals(ReferenceBuffer):
    """`set` stores zeros for subnormal numbers, as a flag of the processor does."""

    rule = Rule.R2
    shown_by = "inputs"
    fault = "values"

    def set(self, payload: Tensor) -> None:
        tiny = torch.finfo(payload.dtype).tiny
        flushed = torch.where(payload.abs() < tiny, torch.zeros_like(payload), payload)
        super().set(flushed if _fits(self, payload) else payload)


class ReadsMemoryInOrder(ReferenceBuffer):
    """`set` takes every payload for contiguous, and reads the memory from its first element on."""

    rule = Rule.R2
    shown_by = "inputs"
    fault = "layout"

    def set(self, payload: Tensor) -> None:
        _, tokens, hidden = payload.shape
        memory = payload.untyped_storage().nbytes() // payload.element_size() - payload.storage_offset()
        if payload.numel() <= memory and _fits(self, payload):
            payload = payload.as_strided(payload.shape, (tokens * hidden, hidden, 1))
        super().set(payload)


class ForgetsTheOffset(ReferenceBuffer):
    """`set` reads a slice from the beginning of the tensor that it was cut from."""

    rule = Rule.R2
    shown_by = "inputs"
    fault = "layout"

    def set(self, payload: Tensor) -> None:
        offset = 0 if _fits(self, payload) else payload.storage_offset()
        super().set(payload.as_strided(payload.shape, payload.stride(), offset))


class ReinterpretsHalf(ReferenceBuffer):
    """`set` takes the bits of a payload for its own dtype where both have as many."""

    rule = Rule.R2
    shown_by = "inputs"
    fault = "dtype"

    def set(self, payload: Tensor) -> None:
        dtype = self._levels[0].dtype
        same = payload.element_size() == self._levels[0].element_size() and _fits(self, payload)
        super().set(payload.contiguous().view(dtype) if same else payload)


class RefusesOtherDtype(ReferenceBuffer):
    """`set` refuses a payload of another dtype than its own."""

    rule = Rule.R2
    shown_by = "inputs"
    fault = "dtype"

    def set(self, payload: Tensor) -> None:
        self._check(payload)
        if payload.dtype != self._levels[0].dtype and payload.size(1) <= self.capacity:
            raise TypeError(f"payload in {payload.dtype}")
        super().set(payload)


class RefusesGradients(ReferenceBuffer):
    """`set` refuses a payload that requires a gradient."""

    rule = Rule.R2
    shown_by = "inputs"
    fault = "gradient"

    def set(self, payload: Tensor) -> None:
        self._check(payload)
        if payload.requires_grad and _fits(self, payload):
            raise RuntimeError("payload requires a gradient")
        super().set(payload)


class RefusesInference(ReferenceBuffer):
    """`set` refuses a payload under inference mode."""

    rule = Rule.R2
    shown_by = "inputs"
    fault = "inference mode"

    def set(self, payload: Tensor) -> None:
        self._check(payload)
        if torch.is_inference_mode_enabled() and payload.size(1) <= self.capacity:
            raise RuntimeError("inference mode")
        super().set(payload)


class CutsAtZeroRow(ReferenceBuffer):
    """`set` takes the first row of zeros for the end of the payload."""

    rule = Rule.R2
    shown_by = "inputs"
    fault = "zero rows"

    def set(self, payload: Tensor) -> None:
        zeros = (payload == 0).all(2).all(0).nonzero().flatten()  # allocated before anything changes
        fits = _fits(self, payload)
        super().set(payload)
        if fits and len(zeros):
            for level in self._levels:
                level[int(zeros[0]) :].zero_()


class SkipsEqualFirstRow(ReferenceBuffer):
    """`set` stores zeros behind the first row if the second row equals it."""

    rule = Rule.R2
    shown_by = "inputs"
    fault = "equal rows"

    def set(self, payload: Tensor) -> None:
        tokens = self._check(payload)
        same = 1 < tokens <= self.capacity and torch.equal(payload[0, :1], payload[0, 1:2])
        super().set(payload)
        for level in self._levels if same else ():
            level[1:tokens].zero_()


class WiderWhenEmpty(ReferenceBuffer):
    """Answers with one column too many while nothing is set."""

    rule = Rule.R2
    shown_by = "inputs"
    fault = "width"

    def get(self, tokens: int) -> tuple[Tensor, ...] | None:
        fits, answer = tokens <= self.capacity, super().get(tokens)
        if self._tokens_set or answer is None or not fits:
            return answer
        return tuple(level.new_zeros(tokens, level.size(1) + 1) for level in answer)


class OneScratch(ReferenceBuffer):
    """Copies every answer into one scratch, so that a get changes the answer before it."""

    rule = Rule.R2
    shown_by = "inputs"
    fault = "kept answers"
    _scratch: Tensor | None = None

    def get(self, tokens: int) -> tuple[Tensor, ...] | None:
        answer = super().get(tokens) or ()
        rows = max(tokens, self.capacity)
        if self._scratch is None or self._scratch.size(1) < rows:
            self._scratch = self._levels[0].new_zeros(len(answer), rows, self._levels[0].size(1))
        self._scratch.zero_()
        for scratch, level in zip(self._scratch, answer, strict=True):
            scratch[:tokens] = level
        return tuple(self._scratch[:, :tokens])


class SharesStorage(ReferenceBuffer):
    """The constructor shares storage with the buffer of the same sizes that was made just before."""

    rule = Rule.R2
    shown_by = "inputs"
    fault = "two buffers"
    _last: ClassVar[list[Tensor]] = []

    def __init__(
        self, capacity: int, hidden: int, levels: int, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__(capacity, hidden, levels, dtype=dtype, device=device)
        last = SharesStorage._last
        if list(map(_kind, last)) == list(map(_kind, self._levels)):
            self._levels = [level.zero_() for level in last]
            SharesStorage._last = []  # the next one is a buffer of another case
        else:
            SharesStorage._last = self._levels


class OverstatesCapacity(ReferenceBuffer):
    """`capacity` is four rows more than there are."""

    rule = Rule.R2
    shown_by = "inputs"
    fault = "stated capacity"

    @property
    def capacity(self) -> int:
        return self._levels[0].size(0) + 4


class SqueezesHidden(ReferenceBuffer):
    """`set` drops the last dimension of a payload of hidden size 1."""

    rule = Rule.R2
    shown_by = "inputs"
    fault = "hidden size"

    def set(self, payload: Tensor) -> None:
        tokens = self._check(payload)
        fits = _fits(self, payload)
        super().set(payload)
        if payload.size(2) == 1 and fits:
            for level, rows in zip(self._levels, payload, strict=True):
                level[:tokens] = rows.squeeze(1)[:1]


class ThreeLevelsOnly(ReferenceBuffer):
    """`set` stores the first three levels, and zeros for the others."""

    rule = Rule.R2
    shown_by = "inputs"
    fault = "levels"

    def set(self, payload: Tensor) -> None:
        fits = _fits(self, payload)
        super().set(payload)
        for level in self._levels[3:] if fits else ():
            level.zero_()


class ForgetsAfterManyGets(ReferenceBuffer):
    """Answers with zeros from the fiftieth get of a payload on."""

    rule = Rule.R2
    shown_by = "inputs"
    fault = "long history"
    _gets = 0

    def set(self, payload: Tensor) -> None:
        super().set(payload)
        self._gets = 0

    def get(self, tokens: int) -> tuple[Tensor, ...] | None:
        answer = super().get(tokens)
        self._gets += 1
        return answer and tuple(level * (self._gets < 50) for level in answer)


def _fits(buffer: ReferenceBuffer, payload: Tensor) -> bool:
    """Return whether a set need not grow: a wrong row behind a growth breaks R4."""
    return payload.size(1) <= buffer.capacity


def _kind(level: Tensor) -> tuple[object, ...]:
    return (level.shape, level.dtype, level.is_inference())


class IgnoresColumnStrides(ReferenceBuffer):
    """`set` reads the columns of a row one behind the other, whatever their stride is."""

    rule = Rule.R2
    shown_by = "inputs"
    fault = "layout"

    def set(self, payload: Tensor) -> None:
        self._check(payload)
        if payload.stride(2) > 1 and _fits(self, payload):
            payload = payload.as_strided(payload.shape, (payload.stride(0), payload.stride(1), 1))
        super().set(payload)


class StoresOneOfExpandedLevels(ReferenceBuffer):
    """`set` stores what lies in memory: of levels that are expanded from one, the first."""

    rule = Rule.R2
    shown_by = "inputs"
    fault = "layout"

    def set(self, payload: Tensor) -> None:
        fits, expanded = _fits(self, payload), payload.stride(0) == 0
        super().set(payload)
        if fits and expanded and payload.numel():
            for level in self._levels[1:]:
                level[: self._tokens_set].zero_()


class CastsThroughFloat32(ReferenceBuffer):
    """`set` casts to float32 first, which a float64 buffer loses bits by."""

    rule = Rule.R2
    shown_by = "inputs"
    fault = "dtype"

    def set(self, payload: Tensor) -> None:
        super().set(payload.float() if _fits(self, payload) else payload)


class StoresBitsOfIntegers(ReferenceBuffer):
    """`set` takes integers of 32 bits, and stores their bits."""

    rule = Rule.R2
    shown_by = "inputs"
    fault = "integers"

    def set(self, payload: Tensor) -> None:
        if payload.dtype == torch.int32 and self._levels[0].dtype == torch.float32 and _fits(self, payload):
            payload = payload.view(torch.float32)
        super().set(payload)


class StoresFourLevels(ReferenceBuffer):
    """`set` stores four levels, and zeros for the others."""

    rule = Rule.R2
    shown_by = "inputs"
    fault = "levels"

    def set(self, payload: Tensor) -> None:
        fits = _fits(self, payload)
        super().set(payload)
        for level in self._levels[4:] if fits else ():
            level[: self._tokens_set].zero_()


class WrapsACounter(ReferenceBuffer):
    """`get` forgets the payload at every 2048th call, when its counter is zero again."""

    rule = Rule.R2
    shown_by = "inputs"
    fault = "many calls"
    _calls = 0

    def get(self, tokens: int) -> tuple[Tensor, ...] | None:
        self._calls = (self._calls + 1) % 2048
        if not self._calls and tokens <= self.capacity:
            self.clear(0)
        return super().get(tokens)


class ExpiresByTheClock(ReferenceBuffer):
    """`get` forgets a payload that was set more than a minute ago."""

    rule = Rule.R2
    shown_by = "inputs"
    fault = "time"
    _since = 0.0

    def set(self, payload: Tensor) -> None:
        super().set(payload)
        self._since = time.monotonic()

    def get(self, tokens: int) -> tuple[Tensor, ...] | None:
        if tokens <= self.capacity and time.monotonic() - self._since > 60:
            self.clear(0)
        return super().get(tokens)


class PacksShownRows(ReferenceBuffer):
    """`set` moves the rows that are not zero together, which hides the text between two images."""

    rule = Rule.R2
    shown_by = "inputs"
    fault = "spans"

    def set(self, payload: Tensor) -> None:
        fits = _fits(self, payload)
        super().set(payload)
        if fits and self._tokens_set:
            shown = payload.ne(0).any(0).any(-1)
            count = int(shown.sum())
            for level, part in zip(self._levels if 0 < count < len(shown) else (), payload, strict=False):
                level[: len(shown)].zero_()
                level[:count] = part[shown].detach().to(level.dtype)
