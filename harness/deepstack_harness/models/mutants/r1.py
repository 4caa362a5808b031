"""Mutants that break R1 structure: an answer that is None, or lacks levels."""

import torch
from torch import Tensor

from deepstack_harness.contract.rules import Rule
from deepstack_harness.models.reference import ReferenceBuffer


class NoneWhenEmpty(ReferenceBuffer):
    """`get` returns None while no payload is set: the fault of vLLM issue 43602."""

    rule = Rule.R1

    def get(self, tokens: int) -> tuple[Tensor, ...] | None:
        answer = super().get(tokens)  # still refuses a negative count: R8 is kept
        return answer if self._tokens_set else None


class NoneForNoTokens(ReferenceBuffer):
    """`get(0)` returns None."""

    rule = Rule.R1

    def get(self, tokens: int) -> tuple[Tensor, ...] | None:
        answer = super().get(tokens)
        return answer if tokens else None


class NoneOnceAfterClear(ReferenceBuffer):
    """The first `get` after a `clear` returns None; later ones return tensors again."""

    rule = Rule.R1
    _just_cleared = False

    def clear(self, tokens: int) -> None:
        super().clear(tokens)
        self._just_cleared = True

    def get(self, tokens: int) -> tuple[Tensor, ...] | None:
        answer = super().get(tokens)
        just_cleared, self._just_cleared = self._just_cleared, False
        return None if just_cleared else answer


class NoLevelsWhenEmpty(ReferenceBuffer):
    """`get` returns an empty tuple while no payload is set."""

    rule = Rule.R1

    def get(self, tokens: int) -> tuple[Tensor, ...] | None:
        answer = super().get(tokens)
        return answer if self._tokens_set else ()


class LevelMissingForOneToken(ReferenceBuffer):
    """`get(1)`, the size of a decode step, leaves out the last level."""

    rule = Rule.R1

    def get(self, tokens: int) -> tuple[Tensor, ...] | None:
        answer = super().get(tokens)
        return answer[:-1] if answer and tokens == 1 else answer


class NoneOnThirdGet(ReferenceBuffer):
    """The third `get` returns None; every other one is correct."""

    rule = Rule.R1
    _gets = 0

    def get(self, tokens: int) -> tuple[Tensor, ...] | None:
        answer = super().get(tokens)
        self._gets += 1
        return None if self._gets == 3 else answer


class StacksLevels(ReferenceBuffer):
    """`get` answers one tensor (levels, P, hidden), over which one can iterate as over a tuple."""

    rule = Rule.R1
    shown_by = "inputs"
    fault = "container"

    def get(self, tokens: int) -> Tensor:  # type: ignore[override]
        return torch.stack(super().get(tokens) or ())


class UnpacksASingleLevel(ReferenceBuffer):
    """`get` answers the tensor itself where the buffer has one level."""

    rule = Rule.R1
    shown_by = "inputs"
    fault = "levels"

    def get(self, tokens: int) -> tuple[Tensor, ...] | None:
        answer = super().get(tokens) or ()
        return answer[0] if len(answer) == 1 else answer  # type: ignore[return-value]
