"""Mutants that break R6 address: storage that moves unannounced, is freed, or is allocated in a capture.

All of them are right in the live regime, where an address is nobody's business.
"""

import torch
from torch import Tensor

from deepstack_harness.models.mutants.hooks import FaultyBuffer, Levels


class MovesUnannounced(FaultyBuffer):
    """`resize` moves the storage and leaves the generation as it was, as every vLLM release does."""

    arm = "eager/full"

    def after_resize(self) -> None:
        self.generation -= 1


class AnnouncesLate(FaultyBuffer):
    """The second `get` after the storage moved changes the generation, one get too late."""

    arm = "eager/full"
    _gets_left = 0

    def after_resize(self) -> None:
        self.generation -= 1
        self._gets_left = 2

    def get(self, tokens: int) -> Levels | None:
        self.generation += self._gets_left == 1
        self._gets_left = max(0, self._gets_left - 1)
        return super().get(tokens)


class CopiesOnGet(FaultyBuffer):
    """`get` returns copies, at other addresses than a captured graph reads."""

    arm = "eager/full"

    def returned(self, levels: Levels, tokens: int) -> object:
        return tuple(level.clone() for level in levels)


class RebindsOnSet(FaultyBuffer):
    """`set` puts each payload into new tensors, which a captured graph never reads (sglang 33726)."""

    arm = "eager/full"

    def stored(self, payload: Tensor) -> Tensor:
        self._levels = [level.clone() for level in self._levels]
        return payload


class MovesOneLevel(FaultyBuffer):
    """`set` puts the last level of each payload into a new tensor."""

    arm = "eager/full"

    def stored(self, payload: Tensor) -> Tensor:
        self._levels = [*self._levels[:-1], self._levels[-1].clone()]
        return payload


class AlternatesStorage(FaultyBuffer):
    """`set` alternates between two storages, but graphs were captured on the first one only."""

    arm = "eager/full"
    _spare: Levels = ()

    def stored(self, payload: Tensor) -> Tensor:
        spare = self._spare or tuple(level.clone() for level in self._levels)
        for level, other in zip(self._levels, spare, strict=True):
            other.copy_(level)
        self._spare, self._levels = tuple(self._levels), list(spare)
        return payload

    def after_resize(self) -> None:
        self._spare = ()  # the other storage has the old size


class MovesOnClear(FaultyBuffer):
    """`clear` moves to new zeroed storage."""

    arm = "eager/full"

    def clear(self, tokens: int) -> None:
        super().clear(tokens)
        self._levels = [torch.zeros_like(level) for level in self._levels]


class FreesOnResize(FaultyBuffer):
    """`resize` frees storage that graphs still read, in the same generation (FastDeploy 5962)."""

    arm = "eager/full"

    def after_resize(self) -> None:
        self.release()
        self.generation -= 1


class GenerationGoesBack(FaultyBuffer):
    """`resize` counts generations modulo two, so that a graph captured two moves ago seems to be valid."""

    arm = "eager/full"

    def after_resize(self) -> None:
        self.generation %= 2


class AllocatesOnClear(FaultyBuffer):
    """`clear` allocates zeros and copies them in, also while a graph is captured."""

    arm = "eager/full"

    def clear(self, tokens: int) -> None:
        super().clear(tokens)
        for level in self._levels:
            level.copy_(torch.zeros_like(level))


class AllocatesOnGet(FaultyBuffer):
    """`get` allocates a tensor on every call, also while a graph is captured.

    What get returns has the right storage.
    """

    arm = "eager/full"

    def returned(self, levels: Levels, tokens: int) -> object:
        for level in levels:
            level.add_(torch.zeros_like(level))
        return levels
