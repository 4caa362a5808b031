"""Run a decoder eagerly, on the payload of the buffer or on one of the two controls that take it away."""

import torch
from torch import Tensor

from deepstack_harness.contract.arm import ArmSpec, PayloadPolicy
from deepstack_harness.contract.observation import DroppedGuard
from deepstack_harness.contract.protocols import Decoder, Inputs, Lane, Profile
from deepstack_harness.errors import StepUnavailable


class EagerSession:
    """Session that calls the decoder; steps of captured or saved graphs do not exist here."""

    calls = 0
    """Calls of compiled code."""
    limit_hit = False
    """Whether Dynamo reached its recompile limit."""

    def __init__(self, spec: ArmSpec, decoder: Decoder, profile: Profile) -> None:
        """Take the decoder; nothing is prepared."""
        self._spec = spec
        self._decoder = decoder
        self._profile = profile

    def forward(self, inputs: Inputs) -> Tensor:
        """Run the decoder on the buffer's payload, or on the control's; return (n, h)."""
        payload = inputs.payload if self._spec.payload is PayloadPolicy.BUFFER else None
        if self._spec.payload not in {PayloadPolicy.BUFFER, PayloadPolicy.NONE}:
            sizes, shape = self._profile, (inputs.positions.size(-1), self._profile.hidden)
            zeros = (torch.zeros(shape, dtype=sizes.dtype, device=sizes.device) for _ in range(sizes.levels))
            payload = tuple(zeros)
        return self._decoder(inputs.hidden, inputs.positions, payload)

    def capture(self, inputs: Inputs, lane: Lane) -> None:
        """Refuse to capture: this arm has no graphs."""
        raise StepUnavailable(f"arm {self._spec.name} captures no graphs")

    def replay(self, inputs: Inputs, lane: Lane) -> Tensor:
        """Refuse to replay: this arm has no graphs."""
        raise StepUnavailable(f"arm {self._spec.name} captures no graphs")

    def reload(self) -> None:
        """Refuse to reload: this arm saves nothing."""
        raise StepUnavailable(f"arm {self._spec.name} saves nothing it could reload")

    def failed_guards(self) -> tuple[DroppedGuard, ...]:
        """Return nothing: there are no guards."""
        return ()

    def forget_failures(self) -> None:
        """Do nothing: no guard can fail."""

    def close(self) -> None:
        """Do nothing: there is nothing to drop."""
