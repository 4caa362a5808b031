"""Targets of a hunt: a buffer, and the way in which it is run."""

from dataclasses import dataclass

from deepstack_harness.contract.arm_spec import EAGER, ArmSpec, Capture, PayloadPolicy
from deepstack_harness.contract.buffer_ref import BufferRef
from deepstack_harness.contract.case import ENGINE, Case, Compare, subject_of
from deepstack_harness.contract.trace import Trace
from deepstack_harness.errors import UsageError


@dataclass(frozen=True)
class Target:
    """A buffer, and the arm, family and caller that drive it.

    With arm `eager` no decoder runs: the buffer is alone.  Raises `UsageError` for an arm that nothing can be
    hunted under.
    """

    buffer: BufferRef
    arm: ArmSpec = EAGER
    family: str = "qwen3_vl"
    caller: str = ENGINE

    def __post_init__(self) -> None:
        """Refuse controls, ranks, and graphs that only torch itself captures."""
        if self.arm.payload is not PayloadPolicy.BUFFER:
            raise UsageError(
                f"arm '{self.arm.name}' is a control: it reads no buffer, so it can show no fault"
            )
        if self.arm.ranks > 1 or self.arm.capture is Capture.REDUCE_OVERHEAD:
            raise UsageError(
                f"arm '{self.arm.name}' cannot be fuzzed: ranks keep no session between "
                "traces, and torch captures reduce_overhead by itself"
            )

    @property
    def alone(self) -> bool:
        """True if no decoder runs beside the buffer."""
        return self.arm == EAGER and self.caller == ENGINE

    @property
    def subject(self) -> str:
        """The buffer's name, with the caller where that is not a correct engine."""
        return subject_of(self.buffer.name, self.caller)

    def case(self, trace: Trace, graph_budget: int) -> Case:
        """Return the case in which a trace is played on this target."""
        return Case(
            self.family, self.buffer, trace, self.arm, graph_budget=graph_budget, caller=self.caller,
            compare=Compare.NOTHING if self.alone else Compare.EAGER,
        )  # fmt: skip
