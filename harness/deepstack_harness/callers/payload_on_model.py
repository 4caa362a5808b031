"""A caller that keeps the payload on the model, where a step that was traced without it never looks again.

tpu-inference stores Qwen3-Omni's payload in an attribute of the model, and reads it inside a jitted step.
What is no argument of a trace is fixed when the step is traced: before the first image nothing is stored.
"""

from dataclasses import replace

from torch import Tensor, nn
from typing_extensions import override

from deepstack_harness.callers.engine import Engine
from deepstack_harness.contract.protocols import Buffer, Inputs, Lane
from deepstack_harness.contract.trace import Step


class ReadsHeldPayload(nn.Module):
    """Decoder that adds the payload that is stored on it, if there is one, and is given none."""

    def __init__(self, decoder: nn.Module) -> None:
        """Wrap a `deepstack_harness.contract.protocols.Decoder`."""
        super().__init__()
        self.decoder = decoder
        self.held: tuple[Tensor, ...] = ()
        """One (n, h) per level; empty in a step without visual tokens."""

    @override
    def forward(self, hidden: Tensor, positions: Tensor, payload: tuple[Tensor, ...] | None) -> Tensor:
        """Decode hidden (n, h), positions (3, n) int64 with the stored payload -> (n, h)."""
        out: Tensor = self.decoder(hidden, positions, self.held or payload)
        return out


class PayloadOnModel(Engine):
    """An engine that stores the payload of a visual step on its decoder, and gives it no argument."""

    @override
    def decoder(self, decoder: nn.Module) -> nn.Module:
        """Return the decoder that reads what is stored on it."""
        self._model, self._visual = ReadsHeldPayload(decoder), False
        return self._model

    @override
    def set(self, buffer: Buffer, payload: Tensor) -> None:
        """Set a payload (levels, N, hidden): the next step is a visual one."""
        super().set(buffer, payload)
        self._visual = True

    @override
    def forward(self, lane: Lane, inputs: Inputs, step: Step) -> Tensor:
        """Store the rows that the buffer answers, decode without an argument, (P, h) -> (P, h)."""
        levels = lane.get(step.tokens)
        self._model.held = (levels or ()) if self._visual else ()
        out = lane.run(replace(inputs, payload=None))
        lane.clear(step.tokens)
        self._model.held, self._visual = (), False
        return out
