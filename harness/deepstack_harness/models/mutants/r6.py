"""Mutants that break R6 address: storage that moves unannounced, is freed, or is allocated in a capture.

All of them are right in the live regime, where an address is nobody's business.
"""

import torch
from torch import Tensor

from deepstack_harness.contract.rules import Rule
from deepstack_harness.models.reference import ReferenceBuffer


class MovesUnannounced(ReferenceBuffer):
    """`resize` moves the storage and leaves the generation as it was, as every vLLM release does."""

    rule = Rule.R6
    arm = "eager/full"

    def resize(self, tokens: int) -> None:
        generation = self.generation
        super().resize(tokens)
        self.generation = generation


class AnnouncesLate(ReferenceBuffer):
    """`get` changes the generation with its second answer after the storage moved, one answer too late."""

    rule = Rule.R6
    arm = "eager/full"
    _answers_left = 0

    def resize(self, tokens: int) -> None:
        generation = self.generation
        super().resize(tokens)
        self.generation, self._answers_left = generation, 2

    def get(self, tokens: int) -> tuple[Tensor, ...] | None:
        self.generation += self._answers_left == 1
        self._answers_left = max(0, self._answers_left - 1)
        return super().get(tokens)


class CopiesOnGet(ReferenceBuffer):
    """`get` returns copies, at other addresses than a captured graph reads."""

    rule = Rule.R6
    arm = "eager/full"

    def get(self, tokens: int) -> tuple[Tensor, ...] | None:
        answer = super().get(tokens)
        return answer and tuple(level.clone() for level in answer)


class RebindsOnSet(ReferenceBuffer):
    """`set` puts each payload into new tensors, which a captured graph never reads (sglang 33726)."""

    rule = Rule.R6
    arm = "eager/full"

    def set(self, payload: Tensor) -> None:
        self._check(payload)
        self._levels = [level.clone() for level in self._levels]
        super().set(payload)


class MovesOneLevel(ReferenceBuffer):
    """`set` puts the last level of each payload into a new tensor."""

    rule = Rule.R6
    arm = "eager/full"

    def set(self, payload: Tensor) -> None:
        self._check(payload)
        self._levels = [*self._levels[:-1], self._levels[-1].clone()]
        super().set(payload)


class AlternatesStorage(ReferenceBuffer):
    """`set` alternates between two storages, but graphs were captured on the first one only."""

    rule = Rule.R6
    arm = "eager/full"
    _spare: tuple[Tensor, ...] = ()

    def set(self, payload: Tensor) -> None:
        self._check(payload)
        spare = self._spare or tuple(level.clone() for level in self._levels)
        for level, other in zip(self._levels, spare, strict=True):
            other.copy_(level)
        self._spare, self._levels = tuple(self._levels), list(spare)
        super().set(payload)

    def resize(self, tokens: int) -> None:
        super().resize(tokens)
        self._spare = ()  # the other storage has the old size


class MovesOnClear(ReferenceBuffer):
    """`clear` moves to new zeroed storage."""

    rule = Rule.R6
    arm = "eager/full"

    def clear(self, tokens: int) -> None:
        super().clear(tokens)
        self._levels = [torch.zeros_like(level) for level in self._levels]


class FreesOnResize(ReferenceBuffer):
    """`resize` frees storage that graphs still read, and keeps the generation (FastDeploy 5962)."""

    rule = Rule.R6
    arm = "eager/full"

    def resize(self, tokens: int) -> None:
        generation = self.generation
        super().resize(tokens)
        self.release()
        self.generation = generation


class GenerationGoesBack(ReferenceBuffer):
    """`resize` counts generations modulo two, so that a graph captured two moves ago seems to be valid."""

    rule = Rule.R6
    arm = "eager/full"

    def resize(self, tokens: int) -> None:
        super().resize(tokens)
        self.generation %= 2


class AllocatesOnClear(ReferenceBuffer):
    """`clear` allocates zeros and copies them in, also while a graph is captured."""

    rule = Rule.R6
    arm = "eager/full"

    def clear(self, tokens: int) -> None:
        super().clear(tokens)
        for level in self._levels:
            level.copy_(torch.zeros_like(level))


class AllocatesOnGet(ReferenceBuffer):
    """`get` allocates a tensor on every call, also while a graph is captured.

    The answer itself has the right storage.
    """

    rule = Rule.R6
    arm = "eager/full"

    def get(self, tokens: int) -> tuple[Tensor, ...] | None:
        answer = super().get(tokens)
        for level in answer or ():
            level.add_(torch.zeros_like(level))
        return answer
