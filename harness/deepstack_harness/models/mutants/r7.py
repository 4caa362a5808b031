"""Mutants that break R7 placement: levels in another dtype or on another device than the hidden states."""

import torch
from torch import Tensor

from deepstack_harness.contract.rules import Rule
from deepstack_harness.models.reference import ReferenceBuffer


class DtypeLostOnResize(ReferenceBuffer):
    """`resize` converts the storage to float64.

    float64 represents every payload exactly, so that only the dtype is wrong.
    """

    rule = Rule.R7

    def resize(self, tokens: int) -> None:
        super().resize(tokens)
        self._levels = [level.to(torch.float64) for level in self._levels]


class DtypeLostOnSet(ReferenceBuffer):
    """The first `set` converts the storage to float64, and announces the move."""

    rule = Rule.R7

    def set(self, payload: Tensor) -> None:
        super().set(payload)
        if self._levels[0].dtype is not torch.float64:
            self.generation += 1
            self._retired.append(self._levels)
            self._levels = [level.to(torch.float64) for level in self._levels]


class OneLevelInFloat64(ReferenceBuffer):
    """The last level has dtype float64, whatever dtype was asked for."""

    rule = Rule.R7

    def __init__(
        self, capacity: int, hidden: int, levels: int, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__(capacity, hidden, levels, dtype=dtype, device=device)
        self._levels[-1] = self._levels[-1].to(torch.float64)


class DeviceLostOnResize(ReferenceBuffer):
    """`resize` moves the storage to another device."""

    rule = Rule.R7

    def resize(self, tokens: int) -> None:
        super().resize(tokens)
        # A machine without a GPU has no second device but this one.
        self._levels = [level.to("meta") for level in self._levels]


class DtypeFollowsPayload(ReferenceBuffer):
    """`set` converts the storage to the dtype of a payload, as vLLM #44384 proposes."""

    rule = Rule.R7
    shown_by = "inputs"
    fault = "dtype"

    def set(self, payload: Tensor) -> None:
        self._check(payload)
        dtype = torch.promote_types(payload.dtype, self._levels[0].dtype)
        if dtype is not self._levels[0].dtype:
            self.generation += 1
            self._retired.append(self._levels)
            self._levels = [level.to(dtype) for level in self._levels]
        super().set(payload)


class EmptyInFloat32(ReferenceBuffer):
    """Answers with float32 zeros while nothing is set."""

    rule = Rule.R7
    shown_by = "inputs"
    fault = "dtype"

    def get(self, tokens: int) -> tuple[Tensor, ...] | None:
        answer = super().get(tokens)
        if self._tokens_set or answer is None:
            return answer
        return tuple(torch.zeros(level.shape, dtype=torch.float32, device=level.device) for level in answer)
