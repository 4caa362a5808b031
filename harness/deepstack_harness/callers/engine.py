"""The correct engine: one get, one decode, one clear for each step."""

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor, nn

from deepstack_harness.contract.protocols import Buffer, BufferFactory, Inputs, Lane, Profile
from deepstack_harness.contract.trace import Step


class Engine:
    """What every caller does; others override the method that they get wrong, or do in another way.

    The reference lane is always driven by this class itself.  Where `ranks` share a
    step, this is `rank` of them.
    """

    ranks: int = 1
    rank: int = 0

    def buffer(self, make: BufferFactory, sizes: Profile) -> Buffer:
        """Make the buffer for hidden states of these sizes, in their dtype and on their device."""
        return make(sizes.capacity, sizes.hidden, sizes.levels, dtype=sizes.dtype, device=sizes.device)

    def decoder(self, decoder: nn.Module) -> nn.Module:
        """The module that the arm runs; the reference lane runs `decoder` itself."""
        return decoder

    def inputs(self, step: Step, inputs: Inputs) -> Inputs:
        """The true inputs of a step, for both lanes."""
        return inputs

    def parts(self, tokens: int) -> Sequence[slice]:
        """Token ranges of a step that are sequences of their own: micro-batches."""
        return (slice(0, tokens),)

    def set(self, buffer: Buffer, payload: Tensor) -> None:
        """Hand over a payload (levels, N, hidden)."""
        buffer.set(payload)

    def forward(self, lane: Lane, inputs: Inputs, step: Step) -> Tensor:
        """The outer forward over P tokens; answers (P, h)."""
        out = lane.run(replace(inputs, payload=lane.get(step.tokens)))
        lane.clear(step.tokens)
        return out
