"""Not compiled: the eager arm, and the two controls that take the payload away."""

import torch
from torch import Tensor

from harness.arm import ArmSpec, PayloadPolicy
from harness.errors import StepUnavailable
from harness.protocols import Decoder, Inputs, Profile


class EagerSession:
    """Calls the decoder; steps of captured or saved graphs do not exist here."""

    def __init__(self, spec: ArmSpec, decoder: Decoder, profile: Profile) -> None:
        """Nothing is prepared."""
        self._spec = spec
        self._decoder = decoder
        self._profile = profile

    def forward(self, inputs: Inputs) -> Tensor:
        """Run the decoder on the buffer's payload, or on the control's; answers (n, h)."""
        return self._decoder(inputs.hidden, inputs.positions, self._payload(inputs))

    def capture(self, tokens: int) -> None:
        """Not in this arm."""
        raise StepUnavailable(f"arm {self._spec.name} captures no graphs")

    def replay(self, tokens: int) -> Tensor:
        """Not in this arm."""
        raise StepUnavailable(f"arm {self._spec.name} captures no graphs")

    def reload(self) -> None:
        """Not in this arm."""
        raise StepUnavailable(f"arm {self._spec.name} saves nothing it could reload")

    def close(self) -> None:
        """Nothing to drop."""

    def _payload(self, inputs: Inputs) -> tuple[Tensor, ...] | None:
        match self._spec.payload:
            case PayloadPolicy.NONE:
                return None
            case PayloadPolicy.ZERO:
                return zero_payload(inputs.hidden, self._profile.levels)
            case PayloadPolicy.BUFFER:
                return inputs.payload


def zero_payload(hidden: Tensor, levels: int) -> tuple[Tensor, ...]:
    """One zeroed tensor per level in the shape of hidden (n, h); distinct storages."""
    return tuple(torch.zeros_like(hidden) for _ in range(levels))


def open_session(spec: ArmSpec, decoder: Decoder, profile: Profile) -> EagerSession:
    """Start an uncompiled session."""
    return EagerSession(spec, decoder, profile)
