"""Mutants that break R1 structure: get returns None, or too few levels."""

import torch

from deepstack_harness.models.mutants.hooks import FaultyBuffer, Levels


class NoneWhenEmpty(FaultyBuffer):
    """`get` returns None while no payload is set: the fault of vLLM issue 43602."""

    def returned(self, levels: Levels, tokens: int) -> object:
        return levels if self._tokens_set else None


class NoneForNoTokens(FaultyBuffer):
    """`get(0)` returns None."""

    def returned(self, levels: Levels, tokens: int) -> object:
        return levels if tokens else None


class NoneOnceAfterClear(FaultyBuffer):
    """The first `get` after a `clear` returns None; later ones return tensors again."""

    _just_cleared = False

    def clear(self, tokens: int) -> None:
        super().clear(tokens)
        self._just_cleared = True

    def returned(self, levels: Levels, tokens: int) -> object:
        just_cleared, self._just_cleared = self._just_cleared, False
        return None if just_cleared else levels


class NoLevelsWhenEmpty(FaultyBuffer):
    """`get` returns an empty tuple while no payload is set."""

    def returned(self, levels: Levels, tokens: int) -> object:
        return levels if self._tokens_set else ()


class LevelMissingForOneToken(FaultyBuffer):
    """`get(1)`, the size of a decode step, leaves out the last level."""

    def returned(self, levels: Levels, tokens: int) -> object:
        return levels[:-1] if tokens == 1 else levels


class NoneOnThirdGet(FaultyBuffer):
    """The third `get` returns None; every other one is correct."""

    _gets = 0

    def returned(self, levels: Levels, tokens: int) -> object:
        self._gets += 1
        return None if self._gets == 3 else levels


class StacksLevels(FaultyBuffer):
    """`get` returns one tensor (levels, P, hidden), over which one can iterate as over a tuple."""

    on_inputs = "container"

    def returned(self, levels: Levels, tokens: int) -> object:
        return torch.stack(levels)


class UnpacksASingleLevel(FaultyBuffer):
    """`get` returns the tensor itself where the buffer has one level."""

    on_inputs = "levels"

    def returned(self, levels: Levels, tokens: int) -> object:
        return levels[0] if len(levels) == 1 else levels
