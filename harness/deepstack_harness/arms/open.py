"""Open an arm: start running a decoder in the way that an `ArmSpec` describes."""

from deepstack_harness.contract.arm_spec import ArmSpec
from deepstack_harness.contract.protocols import Decoder, Profile, Session


def open_arm(spec: ArmSpec, decoder: Decoder, profile: Profile) -> Session:
    """Start a session that runs `decoder` as `spec` says; nothing is compiled before the first forward.

    Raises `MachineError` for reduce_overhead without CUDA, and for code that is interpreted in a process that
    was not started for it.
    """
    if spec.captured:
        from deepstack_harness.arms import capture

        return capture.open_session(spec, decoder, profile)
    if spec.interpreted:
        from deepstack_harness.arms.interpreted import InterpretedSession

        return InterpretedSession(spec, decoder, profile)
    if spec.compiled:
        from deepstack_harness.arms.compile import CompiledSession

        return CompiledSession(spec, decoder, profile)
    from deepstack_harness.arms.eager import EagerSession

    return EagerSession(spec, decoder, profile)
