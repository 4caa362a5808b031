"""Callers that lose the payload on its way: never set, never handed on, or asked for by the wrong size."""

from dataclasses import replace

from torch import Tensor

from deepstack_harness.callers.engine import Engine
from deepstack_harness.contract.protocols import Buffer, Inputs, Lane
from deepstack_harness.contract.trace import Step


class SkipsSet(Engine):
    """The payload is computed and never set (vllm 26626)."""

    def set(self, buffer: Buffer, payload: Tensor) -> None:
        """Nothing happens."""


class OverwritesPayload(Engine):
    """The payload is read and the argument then overwritten: the decoder gets None (mlx-vlm 1635)."""

    def forward(self, lane: Lane, inputs: Inputs, step: Step) -> Tensor:
        """A decode without payload; answers (P, h)."""
        lane.get(step.tokens)
        out = lane.run(inputs)
        lane.clear(step.tokens)
        return out


class AsksByBatchSize(Engine):
    """Takes the size of the batch dimension, 1, for the number of tokens (vllm-omni 198)."""

    def forward(self, lane: Lane, inputs: Inputs, step: Step) -> Tensor:
        """A decode of P tokens with one row of payload; answers (P, h)."""
        out = lane.run(replace(inputs, payload=lane.get(1)))
        lane.clear(step.tokens)
        return out
