"""What is hunted on: a buffer, and the way it is run."""

from dataclasses import dataclass

from deepstack_harness.contract.arm_spec import EAGER, ArmSpec, Capture, PayloadPolicy
from deepstack_harness.contract.case import ENGINE
from deepstack_harness.contract.protocols import BufferFactory
from deepstack_harness.errors import UsageError


@dataclass(frozen=True)
class Target:
    """A buffer's factory with its label, and the arm and family that drive it.

    With arm `eager` no decoder runs: the buffer is alone.  `source` and `model_class`
    are there for upstream classes only.  Raises `UsageError` for an arm that nothing
    can be hunted under.
    """

    label: str
    make: BufferFactory
    arm: ArmSpec = EAGER
    family: str = "qwen3_vl"
    caller: str = ENGINE
    source: str | None = None
    model_class: str | None = None

    def __post_init__(self) -> None:
        """Refuse controls, ranks, and graphs that only torch itself captures."""
        if self.arm.payload is not PayloadPolicy.BUFFER:
            raise UsageError(
                f"arm '{self.arm.name}' is a control: it reads no buffer, so it can show no fault"
            )
        if self.arm.ranks > 1 or self.arm.capture is Capture.REDUCE_OVERHEAD:
            raise UsageError(
                f"arm '{self.arm.name}' cannot be fuzzed: ranks share no session from trace to trace, "
                "and reduce_overhead captures by itself"
            )

    @property
    def alone(self) -> bool:
        """Whether no decoder runs beside the buffer."""
        return self.arm == EAGER and self.caller == ENGINE

    @property
    def subject(self) -> str:
        """The label, with the caller where that is not a correct engine."""
        return self.label if self.caller == ENGINE else f"{self.label}@{self.caller}"
