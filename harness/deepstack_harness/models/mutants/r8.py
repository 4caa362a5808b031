"""Mutants that break R8 rejection: a bad call that is accepted, or refused after the state has changed."""

import torch
from torch import Tensor

from deepstack_harness.models.reference import ReferenceBuffer


class BroadcastsHidden(ReferenceBuffer):
    """`set` broadcasts a payload of hidden size 1 instead of refusing it, as every vLLM release does."""

    def set(self, payload: Tensor) -> None:
        hidden = self._levels[0].size(1)
        super().set(payload.expand(-1, -1, hidden) if payload.size(2) == 1 else payload)


class RejectsAfterClearing(ReferenceBuffer):
    """`set` refuses a payload of another shape, but first drops the previous payload."""

    def set(self, payload: Tensor) -> None:
        if (len(payload), payload.size(2)) != (len(self._levels), self._levels[0].size(1)):
            self.clear(0)
        super().set(payload)


class RejectsAfterCopying(ReferenceBuffer):
    """`set` refuses a payload with another number of levels, but first copies the levels that fit."""

    def set(self, payload: Tensor) -> None:
        for level, rows in zip(self._levels, payload, strict=False):
            # As many levels as there are may fail to grow, which is R4.
            if rows.size(1) == level.size(1) and len(payload) != len(self._levels):
                level[: len(rows)] = rows[: self.capacity]
        super().set(payload)


class RejectsGetAfterClearing(ReferenceBuffer):
    """`get` refuses a negative count, but first drops the payload."""

    def get(self, tokens: int) -> tuple[Tensor, ...] | None:
        if tokens < 0:
            self.clear(0)
        return super().get(tokens)


class AcceptsNegativeGet(ReferenceBuffer):
    """`get` of a negative count returns zero rows."""

    def get(self, tokens: int) -> tuple[Tensor, ...] | None:
        return super().get(max(tokens, 0))


class AcceptsNegativeClear(ReferenceBuffer):
    """`clear` ignores a negative count."""

    def clear(self, tokens: int) -> None:
        if tokens >= 0:
            super().clear(tokens)


class AcceptsNegativeResize(ReferenceBuffer):
    """`resize` ignores a negative count."""

    def resize(self, tokens: int) -> None:
        if tokens >= 0:
            super().resize(tokens)


class AcceptsExtraLevels(ReferenceBuffer):
    """`set` drops the surplus levels of a payload instead of refusing it."""

    def set(self, payload: Tensor) -> None:
        super().set(payload[: len(self._levels)])


class AcceptsMissingLevels(ReferenceBuffer):
    """`set` fills the missing levels of a payload with zeros instead of refusing it."""

    def set(self, payload: Tensor) -> None:
        missing = payload.new_zeros(max(0, len(self._levels) - len(payload)), *payload.shape[1:])
        super().set(torch.cat([payload, missing]))


class PadsHidden(ReferenceBuffer):
    """`set` fills up a payload whose hidden size is one too small."""

    on_inputs = "hidden size"

    def set(self, payload: Tensor) -> None:
        if payload.size(2) + 1 == self._levels[0].size(1):
            payload = torch.nn.functional.pad(payload, (0, 1))
        super().set(payload)


class CutsHidden(ReferenceBuffer):
    """`set` cuts a payload whose hidden size is too large."""

    on_inputs = "hidden size"

    def set(self, payload: Tensor) -> None:
        super().set(payload[:, :, : self._levels[0].size(1)])


class TakesTwiceTheLevels(ReferenceBuffer):
    """`set` adds up a payload of twice as many levels."""

    on_inputs = "levels"

    def set(self, payload: Tensor) -> None:
        levels = len(self._levels)
        super().set(payload[:levels] + payload[levels:] if len(payload) == 2 * levels else payload)


class CountsFromTheEnd(ReferenceBuffer):
    """`get` of less than -1 rows returns what a Python slice does."""

    on_inputs = "negative counts"

    def get(self, tokens: int) -> tuple[Tensor, ...] | None:
        return tuple(level[:tokens] for level in self._levels) if tokens < -1 else super().get(tokens)


class ComparesTheProduct(ReferenceBuffer):
    """`set` compares levels times hidden, so that two wrong sizes cancel."""

    on_inputs = "wrong shape"

    def set(self, payload: Tensor) -> None:
        levels, hidden = len(self._levels), self._levels[0].size(1)
        if payload.dim() == 3 and payload.size(0) * payload.size(2) == levels * hidden:
            payload = payload.reshape(levels, payload.size(1), hidden)
        super().set(payload)


class TakesSwappedSizes(ReferenceBuffer):
    """`set` takes a payload (N, levels, hidden) too."""

    on_inputs = "wrong shape"

    def set(self, payload: Tensor) -> None:
        levels = len(self._levels)
        if payload.dim() == 3 and payload.size(0) != levels and payload.size(1) == levels:
            payload = payload.transpose(0, 1)
        super().set(payload)


class TakesFlatPayloads(ReferenceBuffer):
    """`set` takes a payload (levels * N, hidden) too."""

    on_inputs = "wrong shape"

    def set(self, payload: Tensor) -> None:
        levels = len(self._levels)
        if payload.dim() == 2 and payload.size(0) % levels == 0:
            payload = payload.reshape(levels, -1, payload.size(1))
        super().set(payload)


class ForgetsAtTwoWrongSizes(ReferenceBuffer):
    """`set` forgets the payload before it refuses one of which both sizes are wrong."""

    on_inputs = "wrong shape"

    def set(self, payload: Tensor) -> None:
        sizes = (len(self._levels), self._levels[0].size(1))
        if payload.dim() == 3 and payload.size(0) != sizes[0] and payload.size(2) != sizes[1]:
            self.clear(0)
        super().set(payload)
