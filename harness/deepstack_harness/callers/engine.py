"""The correct engine: one get, one decode, one clear for each step."""

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor, nn

from deepstack_harness.contract.protocols import Buffer, BufferFactory, Inputs, Lane, Profile
from deepstack_harness.contract.trace import Step


class Engine:
    """Base of all callers; a subclass overrides the method that it gets wrong, or does in another way.

    The reference lane is always driven by this class itself.  Where `ranks` share a step, the object
    is `rank` of them.
    """

    ranks: int = 1
    rank: int = 0

    def buffer(self, make: BufferFactory, sizes: Profile) -> Buffer:
        """Make the buffer for hidden states of these sizes, in their dtype and on their device."""
        return make(sizes.capacity, sizes.hidden, sizes.levels, dtype=sizes.dtype, device=sizes.device)

    def decoder(self, decoder: nn.Module) -> nn.Module:
        """Return the module that the arm runs; the reference lane runs `decoder` itself."""
        return decoder

    def inputs(self, step: Step, inputs: Inputs) -> Inputs:
        """Return the true inputs of a step, for both lanes: hidden (P, h), positions (3, P) int64."""
        return inputs

    def parts(self, tokens: int) -> Sequence[slice]:
        """Return the token ranges of a step that are sequences of their own: micro-batches."""
        return (slice(0, tokens),)

    def owns(self, tokens: int) -> tuple[tuple[int, int], ...] | None:
        """Return this rank's rows of a step as half-open ranges; None for the contiguous share."""
        return None

    def set(self, buffer: Buffer, payload: Tensor) -> None:
        """Set a payload (levels, N, hidden)."""
        buffer.set(payload)

    def forward(self, lane: Lane, inputs: Inputs, step: Step) -> Tensor:
        """Run the outer forward over P tokens, hidden (P, h) -> (P, h)."""
        out = lane.run(replace(inputs, payload=lane.get(step.tokens)))
        lane.clear(step.tokens)
        return out
