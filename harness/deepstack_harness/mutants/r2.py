"""Mutants that break R2 boundary: wrong rows, counts or exceptions within the capacity.

Most leave a call that has to grow unchanged, because wrong rows there break R4 instead.
"""

import torch
from torch import Tensor

from deepstack_harness.contract.rules import Rule
from deepstack_harness.revisions.reference import ReferenceBuffer


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
