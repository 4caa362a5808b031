"""CUDA graphs by torch itself (`mode="reduce-overhead"`): captured at the second run of a size, on its own.

torch copies inputs that may move into slots of its own, so that no graph of these
leans on the buffer's storage (torch.compile's documentation of the mode).
"""

from torch import Tensor, compiler
from typing_extensions import override

from deepstack_harness.arms.compile import CompiledSession
from deepstack_harness.contract.arm_spec import ArmSpec
from deepstack_harness.contract.protocols import Decoder, Inputs, Lane, Profile
from deepstack_harness.errors import MachineError, NotMeasured, StepUnavailable
from deepstack_harness.torch_compat.cudagraphs import graphs_skipped


class ReduceOverheadSession(CompiledSession):
    """A compiled session whose runs are replays from the third one of a size on."""

    @override
    def forward(self, inputs: Inputs) -> Tensor:
        """Return a copy of the output (n, hidden): torch writes over its own at the next run.

        Raises `NotMeasured` where torch gave up on CUDA graphs, which it does without an error.
        """
        compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        out = super().forward(inputs).clone()
        if graphs_skipped():
            raise NotMeasured(f"arm {self._spec.name}: torch ran it without a CUDA graph")
        return out

    @override
    def capture(self, inputs: Inputs, lane: Lane) -> None:
        raise StepUnavailable(f"arm {self._spec.name}: torch captures by itself, in forward")

    @override
    def replay(self, inputs: Inputs, lane: Lane) -> Tensor:
        raise StepUnavailable(f"arm {self._spec.name}: torch replays by itself, in forward")


def open_session(spec: ArmSpec, decoder: Decoder, profile: Profile) -> ReduceOverheadSession:
    """Start a session; raises `MachineError` without CUDA."""
    if profile.device.type != "cuda":
        raise MachineError(
            f"arm '{spec.name}' needs a CUDA device, not '{profile.device}': torch captures CUDA graphs only"
        )
    return ReduceOverheadSession(spec, decoder, profile)
