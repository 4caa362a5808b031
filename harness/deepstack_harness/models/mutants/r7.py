"""Mutants that break R7 placement: levels in another dtype or on another device than the hidden states."""

import torch
from torch import Tensor

from deepstack_harness.models.mutants.hooks import FaultyBuffer, Levels


class DtypeLostOnResize(FaultyBuffer):
    """`resize` converts the storage to float64.

    float64 represents every payload exactly, so that only the dtype is wrong.
    """

    def after_resize(self) -> None:
        self._levels = [level.to(torch.float64) for level in self._levels]


class DtypeLostOnSet(FaultyBuffer):
    """The first `set` converts the storage to float64, and announces the move."""

    def after_set(self, payload: Tensor) -> None:
        if self._levels[0].dtype is not torch.float64:
            self.generation += 1
            self._retired.append(self._levels)
            self._levels = [level.to(torch.float64) for level in self._levels]


class OneLevelInFloat64(FaultyBuffer):
    """The last level has dtype float64, whatever dtype was requested."""

    def made(self) -> None:
        self._levels[-1] = self._levels[-1].to(torch.float64)


class DeviceLostOnResize(FaultyBuffer):
    """`resize` moves the storage to another device."""

    def after_resize(self) -> None:
        # A machine without a GPU has no second device but this one.
        self._levels = [level.to("meta") for level in self._levels]


class DtypeFollowsPayload(FaultyBuffer):
    """`set` converts the storage to the dtype of a payload, as vLLM #44384 proposes."""

    on_inputs = "dtype"

    def stored(self, payload: Tensor) -> Tensor:
        dtype = torch.promote_types(payload.dtype, self._levels[0].dtype)
        if dtype is not self._levels[0].dtype:
            self.generation += 1
            self._retired.append(self._levels)
            self._levels = [level.to(dtype) for level in self._levels]
        return payload


class EmptyInFloat32(FaultyBuffer):
    """`get` returns float32 zeros while nothing is set."""

    on_inputs = "dtype"

    def returned(self, levels: Levels, tokens: int) -> object:
        return levels if self._tokens_set else tuple(torch.zeros_like(level).float() for level in levels)
