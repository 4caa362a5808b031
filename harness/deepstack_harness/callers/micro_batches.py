"""A step split in two halves that share one buffer, as an engine that overlaps micro-batches does.

The outer forward runs once for each half (vllm/v1/worker/gpu_ubatch_wrapper.py), so
each half asks for its own rows and clears them, and both ask from row 0 on.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from deepstack_harness.callers.engine import Engine
from deepstack_harness.contract.protocols import Inputs, Lane
from deepstack_harness.contract.trace import Step


class MicroBatches(Engine):
    """Each half gets, decodes and clears by itself: the second one reads the rows of the first."""

    def parts(self, tokens: int) -> Sequence[slice]:
        """The first half and the rest."""
        half = (tokens + 1) // 2
        return (slice(0, half), slice(half, tokens))

    def forward(self, lane: Lane, inputs: Inputs, step: Step) -> Tensor:
        """Two outer forwards; answers (P, h)."""
        return torch.cat([self._outer(lane, inputs, rows) for rows in self.parts(step.tokens)])

    def _outer(self, lane: Lane, inputs: Inputs, rows: slice) -> Tensor:
        tokens = rows.stop - rows.start
        out = lane.run(replace(rows_of(inputs, rows), payload=lane.get(tokens)))
        lane.clear(tokens)
        return out


class MicroBatchesSliced(MicroBatches):
    """The payload is read once and cut per half, as hidden states and positions are; cleared at the end."""

    def forward(self, lane: Lane, inputs: Inputs, step: Step) -> Tensor:
        """One get and one clear around two decodes; answers (P, h)."""
        whole = replace(inputs, payload=lane.get(step.tokens))
        out = torch.cat([lane.run(rows_of(whole, rows)) for rows in self.parts(step.tokens)])
        lane.clear(step.tokens)
        return out


def rows_of(inputs: Inputs, rows: slice) -> Inputs:
    """These rows of every argument."""
    payload = inputs.payload
    cut = None if payload is None else tuple(level[rows] for level in payload)
    return Inputs(inputs.hidden[rows], inputs.positions[:, rows], cut)
