"""Mutants that break R2 boundary on payloads as engines make them, and on long or shared histories."""

from typing import ClassVar

import torch
from torch import Tensor

from deepstack_harness.contract.rules import Rule
from deepstack_harness.revisions.reference import ReferenceBuffer


class ReplacesNan(ReferenceBuffer):
    """`set` stores zeros for NaN."""

    rule = Rule.R2
    fault = "values"

    def set(self, payload: Tensor) -> None:
        super().set(torch.where(payload.isnan(), 0.0, payload) if _fits(self, payload) else payload)


class ClampsInfinity(ReferenceBuffer):
    """`set` stores the largest number of its dtype for infinity."""

    rule = Rule.R2
    fault = "values"

    def set(self, payload: Tensor) -> None:
        most = torch.finfo(self._levels[0].dtype).max
        super().set(payload.clamp(-most, most) if _fits(self, payload) else payload)


class FlushesSubnormals(ReferenceBuffer):
    """`set` stores zeros for subnormal numbers, as a flag of the processor does."""

    rule = Rule.R2
    fault = "values"

    def set(self, payload: Tensor) -> None:
        tiny = torch.finfo(payload.dtype).tiny
        flushed = torch.where(payload.abs() < tiny, torch.zeros_like(payload), payload)
        super().set(flushed if _fits(self, payload) else payload)


class ReadsMemoryInOrder(ReferenceBuffer):
    """`set` takes every payload for contiguous, and reads the memory from its first element on."""

    rule = Rule.R2
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
    fault = "layout"

    def set(self, payload: Tensor) -> None:
        offset = 0 if _fits(self, payload) else payload.storage_offset()
        super().set(payload.as_strided(payload.shape, payload.stride(), offset))


class ReinterpretsHalf(ReferenceBuffer):
    """`set` takes the bits of a payload for its own dtype where both have as many."""

    rule = Rule.R2
    fault = "dtype"

    def set(self, payload: Tensor) -> None:
        dtype = self._levels[0].dtype
        same = payload.element_size() == self._levels[0].element_size() and _fits(self, payload)
        super().set(payload.contiguous().view(dtype) if same else payload)


class RefusesOtherDtype(ReferenceBuffer):
    """`set` refuses a payload of another dtype than its own."""

    rule = Rule.R2
    fault = "dtype"

    def set(self, payload: Tensor) -> None:
        self._check(payload)
        if payload.dtype != self._levels[0].dtype and payload.size(1) <= self.capacity:
            raise TypeError(f"payload in {payload.dtype}")
        super().set(payload)


class RefusesGradients(ReferenceBuffer):
    """`set` refuses a payload that requires a gradient."""

    rule = Rule.R2
    fault = "gradient"

    def set(self, payload: Tensor) -> None:
        self._check(payload)
        if payload.requires_grad and _fits(self, payload):
            raise RuntimeError("payload requires a gradient")
        super().set(payload)


class RefusesInference(ReferenceBuffer):
    """`set` refuses a payload under inference mode."""

    rule = Rule.R2
    fault = "inference mode"

    def set(self, payload: Tensor) -> None:
        self._check(payload)
        if torch.is_inference_mode_enabled() and payload.size(1) <= self.capacity:
            raise RuntimeError("inference mode")
        super().set(payload)


class CutsAtZeroRow(ReferenceBuffer):
    """`set` takes the first row of zeros for the end of the payload."""

    rule = Rule.R2
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
    fault = "width"

    def get(self, tokens: int) -> tuple[Tensor, ...] | None:
        fits, answer = tokens <= self.capacity, super().get(tokens)
        if self._tokens_set or answer is None or not fits:
            return answer
        return tuple(level.new_zeros(tokens, level.size(1) + 1) for level in answer)


class OneScratch(ReferenceBuffer):
    """Copies every answer into one scratch, so that a get changes the answer before it."""

    rule = Rule.R2
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
    fault = "stated capacity"

    @property
    def capacity(self) -> int:
        return self._levels[0].size(0) + 4


class SqueezesHidden(ReferenceBuffer):
    """`set` drops the last dimension of a payload of hidden size 1."""

    rule = Rule.R2
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
    fault = "levels"

    def set(self, payload: Tensor) -> None:
        fits = _fits(self, payload)
        super().set(payload)
        for level in self._levels[3:] if fits else ():
            level.zero_()


class ForgetsAfterManyGets(ReferenceBuffer):
    """Answers with zeros from the fiftieth get of a payload on."""

    rule = Rule.R2
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
