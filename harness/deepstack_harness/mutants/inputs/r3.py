"""Mutants that break R3 freshness in ways that only the caller's tensor shows."""

from torch import Tensor

from deepstack_harness.contract.rules import Rule
from deepstack_harness.revisions.reference import ReferenceBuffer


class ZeroesCallersTensor(ReferenceBuffer):
    """`set` zeroes the tensor that it was given once it has copied it."""

    rule = Rule.R3
    fault = "caller's tensor"

    def set(self, payload: Tensor) -> None:
        super().set(payload)
        payload.detach().zero_()


class StoresNanInCallersTensor(ReferenceBuffer):
    """`set` writes over the NaN of the tensor that it was given, and leaves all other values."""

    rule = Rule.R3
    fault = "caller's tensor"

    def set(self, payload: Tensor) -> None:
        super().set(payload)
        if 0 not in payload.stride():
            payload.detach().nan_to_num_(nan=0.5, posinf=float("inf"), neginf=float("-inf"))
