"""A caller whose inputs are slices of storage that lives as long as the engine does.

vLLM's are (`inputs_embeds` and `mrope_positions` of vllm/v1/worker/gpu_model_runner.py).  A graph that
processes more rows than the step has then reads rows of earlier steps.  Behind tensors of the step's own
size it would read memory outside them.
"""

from dataclasses import replace

import torch
from typing_extensions import override

from deepstack_harness.callers.engine import Engine
from deepstack_harness.contract.protocols import Buffer, BufferFactory, Inputs, Profile
from deepstack_harness.contract.trace import Step


class StaticInputs(Engine):
    """An engine that copies the inputs of every step of up to `capacity` tokens into the same storage."""

    @override
    def buffer(self, make: BufferFactory, sizes: Profile) -> Buffer:
        """Make the buffer and zeroed storage: hidden (capacity, h), positions (3, capacity + 1)."""
        # As in vLLM, one position too many keeps slices of positions from ever being contiguous.
        shape, device = (sizes.capacity, sizes.hidden), sizes.device
        self._hidden = torch.zeros(shape, dtype=sizes.dtype, device=device)
        self._positions = torch.zeros((3, sizes.capacity + 1), dtype=torch.int64, device=device)
        return super().buffer(make, sizes)

    @override
    def inputs(self, step: Step, inputs: Inputs) -> Inputs:
        """Copy hidden (P, h) and positions (3, P) into slices; return inputs above the capacity unchanged."""
        if step.tokens > len(self._hidden):
            return inputs
        hidden = self._hidden[: step.tokens].copy_(inputs.hidden)
        positions = self._positions[:, : step.tokens].copy_(inputs.positions)
        return replace(inputs, hidden=hidden, positions=positions)
