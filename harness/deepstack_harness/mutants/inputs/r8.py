"""Mutants that break R8 rejection by shapes that are off by little."""

import torch
from torch import Tensor

from deepstack_harness.contract.rules import Rule
from deepstack_harness.revisions.reference import ReferenceBuffer


class PadsHidden(ReferenceBuffer):
    """`set` fills up a payload whose hidden size is one too small."""

    rule = Rule.R8
    fault = "hidden size"

    def set(self, payload: Tensor) -> None:
        if payload.size(2) + 1 == self._levels[0].size(1):
            payload = torch.nn.functional.pad(payload, (0, 1))
        super().set(payload)


class CutsHidden(ReferenceBuffer):
    """`set` cuts a payload whose hidden size is too large."""

    rule = Rule.R8
    fault = "hidden size"

    def set(self, payload: Tensor) -> None:
        super().set(payload[:, :, : self._levels[0].size(1)])


class TakesTwiceTheLevels(ReferenceBuffer):
    """`set` adds up a payload of twice as many levels."""

    rule = Rule.R8
    fault = "levels"

    def set(self, payload: Tensor) -> None:
        levels = len(self._levels)
        super().set(payload[:levels] + payload[levels:] if len(payload) == 2 * levels else payload)


class CountsFromTheEnd(ReferenceBuffer):
    """Answers a get of less than -1 rows as Python slices do."""

    rule = Rule.R8
    fault = "negative counts"

    def get(self, tokens: int) -> tuple[Tensor, ...] | None:
        return tuple(level[:tokens] for level in self._levels) if tokens < -1 else super().get(tokens)
