"""Callers that split a step into two halves with one buffer, as engines that overlap micro-batches do.

The outer forward runs once for each half (vllm/v1/worker/gpu_ubatch_wrapper.py).  Each half asks for as
many rows as it has and clears them, and both read from row 0 on.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor
from typing_extensions import override

from deepstack_harness.callers.engine import Engine
from deepstack_harness.contract.protocols import Inputs, Lane
from deepstack_harness.contract.trace import Step


class MicroBatches(Engine):
    """An engine whose halves each get, decode and clear: the second half reads the rows of the first."""

    @override
    def parts(self, tokens: int) -> Sequence[slice]:
        """Return the first half, rounded up, and the rest."""
        half = (tokens + 1) // 2
        return (slice(0, half), slice(half, tokens))

    @override
    def forward(self, lane: Lane, inputs: Inputs, step: Step) -> Tensor:
        """Run two outer forwards over P tokens, hidden (P, h) -> (P, h)."""
        return torch.cat([self._outer(lane, inputs, rows) for rows in self.parts(step.tokens)])

    def _outer(self, lane: Lane, inputs: Inputs, rows: slice) -> Tensor:
        tokens = rows.stop - rows.start
        out = lane.run(replace(rows_of(inputs, rows), payload=lane.get(tokens)))
        lane.clear(tokens)
        return out


class MicroBatchesSliced(MicroBatches):
    """An engine that reads the payload once, cuts it for each half, and clears it after both."""

    @override
    def forward(self, lane: Lane, inputs: Inputs, step: Step) -> Tensor:
        """Run one get and one clear around two decodes, hidden (P, h) -> (P, h)."""
        whole = replace(inputs, payload=lane.get(step.tokens))
        out = torch.cat([lane.run(rows_of(whole, rows)) for rows in self.parts(step.tokens)])
        lane.clear(step.tokens)
        return out


def rows_of(inputs: Inputs, rows: slice) -> Inputs:
    """Cut every argument to these rows: hidden (n, h), positions (3, n), one (n, h) per level."""
    payload = inputs.payload
    cut = None if payload is None else tuple(level[rows] for level in payload)
    return Inputs(inputs.hidden[rows], inputs.positions[:, rows], cut)
