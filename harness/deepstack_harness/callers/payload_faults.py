"""Callers that lose the payload on its way to the decoder, or read and write the wrong rows of it."""

from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from deepstack_harness.callers.engine import Engine
from deepstack_harness.contract.protocols import Buffer, Inputs, Lane
from deepstack_harness.contract.trace import Step


class SkipsSet(Engine):
    """An engine that computes the payload and never sets it (vllm 26626)."""

    @override
    def set(self, buffer: Buffer, payload: Tensor) -> None:
        """Drop a payload (levels, N, hidden)."""


class OverwritesPayload(Engine):
    """An engine that reads the payload and then gives the decoder None (mlx-vlm 1635)."""

    @override
    def forward(self, lane: Lane, inputs: Inputs, step: Step) -> Tensor:
        """Decode P tokens without a payload, hidden (P, h) -> (P, h)."""
        lane.get(step.tokens)
        out = lane.run(inputs)
        lane.clear(step.tokens)
        return out


class AsksByBatchSize(Engine):
    """An engine that takes the batch size, 1, for the number of tokens (vllm-omni 198)."""

    @override
    def forward(self, lane: Lane, inputs: Inputs, step: Step) -> Tensor:
        """Decode P tokens with a payload of one row, hidden (P, h) -> (P, h)."""
        out = lane.run(replace(inputs, payload=lane.get(1)))
        lane.clear(step.tokens)
        return out


class TakesOneSpan(Engine):
    """An engine that takes the visual tokens of a step for one contiguous span (mlx-vlm 2296).

    In a step of several requests, visual tokens behind the first gap get the rows of others.
    """

    @override
    def set(self, buffer: Buffer, payload: Tensor) -> None:
        """Set a payload (levels, N, hidden) whose k-th visual row is the k-th row after the first one."""
        visual = payload.abs().sum((0, 2)).nonzero().flatten()  # rows of text are zero
        mixed = torch.zeros_like(payload)
        if len(visual):
            first = int(visual[0])
            mixed[:, visual] = payload[:, first : first + len(visual)]
        buffer.set(mixed)


class NeverClears(Engine):
    """An engine that ends no payload: a step without visual tokens reads that of the step before it.

    Nothing erases the tensors that tpu-inference stores on Qwen3-Omni.
    """

    @override
    def forward(self, lane: Lane, inputs: Inputs, step: Step) -> Tensor:
        """Run get and decode over P tokens, and no clear, hidden (P, h) -> (P, h)."""
        return lane.run(replace(inputs, payload=lane.get(step.tokens)))


class FixedLevelRange(Engine):
    """An engine that adds a fixed number of levels, whatever the model has (`range(3)` in sglang)."""

    levels: ClassVar[int] = 3

    @override
    def forward(self, lane: Lane, inputs: Inputs, step: Step) -> Tensor:
        """Decode P tokens with zeros in place of the levels behind the range, hidden (P, h) -> (P, h)."""
        levels = lane.get(step.tokens) or ()
        kept = tuple(
            level if index < self.levels else torch.zeros_like(level) for index, level in enumerate(levels)
        )
        out = lane.run(replace(inputs, payload=kept or None))
        lane.clear(step.tokens)
        return out
