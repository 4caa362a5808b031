"""Interpret the Triton source that Inductor generates for an H200: without a GPU, with every access recorded.

Where guards are dropped, the decoder is traced with fake tensors on `cuda`, so that Inductor generates what
an H200 would run, and the result is called with the decoder's own tensors in host memory. Other guards would
refuse those, and sizes of fake tensors are never unbacked: in these cases the decoder is traced and called
with tensors on a fake `cuda:0` over the same memory (`torch_compat.fake_gpu.HostGpu`).

This is the source with one configuration, programs one after the other; matrix products and attention are
torch's. Races, PTX, layouts and CUDA graphs are not seen.
"""

from contextlib import suppress
from functools import cache

from torch import Tensor, nn
from typing_extensions import override

from deepstack_harness.compile.compiled import CompiledSession
from deepstack_harness.compile.torch_compat.targets import (
    H200,
    check_support,
    interprets_here,
    naming_what_moved,
)
from deepstack_harness.contract.arm import ArmSpec, GuardPolicy, ShapePolicy
from deepstack_harness.contract.facts import AccessFacts, join_accesses
from deepstack_harness.contract.protocols import Decoder, Inputs, Profile
from deepstack_harness.errors import MachineError, StepUnavailable


class InterpretedSession(CompiledSession):
    """A compiled session whose kernels run in Triton's interpreter."""

    def __init__(self, spec: ArmSpec, decoder: Decoder, profile: Profile) -> None:
        """Prepare; the first forward traces.

        From now on this process pretends to have an H200. Raises `MachineError` for a process that was
        started without `ENVIRONMENT`, and for a torch or triton that is not known.
        """
        check_support()
        if not interprets_here():
            raise MachineError(
                f"arm {spec.name} needs a worker that was started for it: TRITON_INTERPRET=1 is read when "
                "triton is imported (play_case starts one)"
            )
        if profile.device.type != "cpu":
            raise MachineError(
                f"arm {spec.name} interprets on the CPU, whatever GPU is here, not on '{profile.device}'"
            )
        _pretend()
        with naming_what_moved():
            from deepstack_harness.compile.torch_compat.inductor import cold
            from deepstack_harness.compile.torch_compat.interpreted_graphs import interpreted_graphs

        super().__init__(spec, decoder, profile)
        self._cleanup.enter_context(cold(run=False))
        self.graphs = self._cleanup.enter_context(interpreted_graphs())
        self._module: nn.Module = decoder  # type: ignore[assignment]
        self._traced = False
        # Guards check devices, or sizes are unbacked: fake tensors serve neither.
        drops_all, unbacked = spec.guards is GuardPolicy.DROP_ALL, spec.shapes is ShapePolicy.MARK_UNBACKED
        self._needs_cuda_tensors = unbacked or not drops_all
        self._facts: list[AccessFacts] = []

    @override
    def forward(self, inputs: Inputs) -> Tensor:
        """Run the interpreted decoder on the CPU; return (n, h).

        Raises `StepUnavailable`, with the kernel's name, for code that cannot be interpreted.
        """
        if not self._traced and not self._needs_cuda_tensors:
            self.trace(inputs)
        named = {"hidden": inputs.hidden, "positions": inputs.positions}
        named |= {f"payload[{index}]": level for index, level in enumerate(inputs.payload or ())}
        named |= {**dict(self._module.named_parameters()), **dict(self._module.named_buffers())}
        memory, out = self.graphs.begin(named), None
        try:
            if self._needs_cuda_tensors:  # on a fake `cuda:0`, where the first call traces too
                with self.graphs.host.holding(self._module) as on_gpu:
                    payload = inputs.payload and tuple(map(on_gpu, inputs.payload))
                    out = super().forward(Inputs(on_gpu(inputs.hidden), on_gpu(inputs.positions), payload))
            else:
                out = super().forward(inputs)
        finally:
            self._facts.append(memory.facts(out, inputs.positions.size(-1)))
        return out

    def trace(self, inputs: Inputs) -> None:
        """Generate the graph for inputs of this structure, hidden (n, h), without running it.

        For arms whose guards are dropped and whose sizes are not unbacked; others trace at the first step.
        """
        from deepstack_harness.compile.torch_compat.inductor import NotRun
        from deepstack_harness.compile.torch_compat.modes import on_fake_gpu

        with on_fake_gpu(self._module) as copied, suppress(NotRun):
            payload = inputs.payload and tuple(map(copied, inputs.payload))
            super().forward(Inputs(copied(inputs.hidden), copied(inputs.positions), payload))
        self._traced = True

    def take_accesses(self) -> AccessFacts | None:
        """Return what the kernels touched since the last call, None where none ran."""
        facts, self._facts = join_accesses(self._facts), []
        return facts

    @override
    def reload(self) -> None:
        raise StepUnavailable(f"arm {self._spec.name}: torch saves no code that is interpreted")


@cache
def _pretend() -> None:
    """Pretend to have an H200 for the rest of this process."""
    with naming_what_moved():
        from deepstack_harness.compile.torch_compat.fake_gpu import pretend

    pretend(H200)
