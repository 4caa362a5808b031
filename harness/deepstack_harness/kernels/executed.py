"""Launches of an interpreted step, each beside the static count of its kernel.  No torch."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from deepstack_harness.contract.facts.accesses import AccessFacts, KernelAccess
from deepstack_harness.contract.facts.kernels import Kernel
from deepstack_harness.errors import NotMeasured
from deepstack_harness.kernels.measurement import Measurement
from deepstack_harness.kernels.subject import Subject

_OF_TOKENS = ("hidden", "payload[", "buffer ", "a result of torch")
"""How the names of tensors begin that may have token rows; weights have the names of their modules."""


@dataclass(frozen=True)
class ExecutedLaunch:
    """One launch: what it touched, and the kernel whose bytes were counted from the scheduler's sizes."""

    number: int
    kernel: str
    accesses: tuple[KernelAccess, ...]
    counted: Kernel

    @property
    def rows(self) -> int:
        """The most rows that it touched of a tensor of token rows."""
        of_tokens = (access for access in self.accesses if access.tensor.startswith(_OF_TOKENS))
        return max((access.rows for access in of_tokens), default=0)

    @property
    def payload_rows(self) -> int:
        """The most rows that it touched of a level of the payload; 0 where it has nothing to do with one."""
        levels = (access for access in self.accesses if access.tensor.startswith("payload["))
        return max((access.rows for access in levels), default=0)

    @property
    def bytes(self) -> int:
        """Bytes that it read and wrote; elements that it touched again count once."""
        return sum(access.bytes for access in self.accesses)


@dataclass(frozen=True)
class ExecutedRow:
    """Row that `kernels --execute --json` writes for each launch; `static_bytes` is the scheduler's count."""

    system: str
    kind: str
    family: str
    revision: str
    arm: str
    target: str
    device: str
    dtype: str
    tokens: int
    capacity: int
    launch: int
    kernel: str
    rows: int
    payload_rows: int
    bytes: int
    static_bytes: int
    accesses: tuple[KernelAccess, ...]
    share: float
    step_processor_seconds: float
    torch: str
    triton: str | None
    schema_version: int = 1


@dataclass(frozen=True)
class LibraryRow:
    """Row that `kernels --execute --json` writes for each operation that was left to torch."""

    system: str
    kind: str
    family: str
    revision: str
    target: str
    operation: str
    operands: tuple[str, ...]
    bytes: int
    unwritten: tuple[str, ...]
    schema_version: int = 1


@dataclass(frozen=True)
class ExecutedStep:
    """The step of a subject, launch by launch."""

    subject: Subject
    measured: Measurement
    accesses: AccessFacts
    launches: tuple[ExecutedLaunch, ...]

    @property
    def bytes(self) -> int:
        """Bytes that all launches touched."""
        return sum(launch.bytes for launch in self.launches)

    @property
    def counted_bytes(self) -> int:
        """Bytes that were counted from the scheduler's sizes."""
        return sum(launch.counted.bytes for launch in self.launches)

    def rows(self) -> Iterator[ExecutedRow | LibraryRow]:
        """Yield a row for each launch, and then one for each operation that was left to torch."""
        subject, measured = self.subject, self.measured
        for launch in self.launches:
            yield ExecutedRow(
                system="deepstack", kind="launch", family=measured.family, revision=subject.revision,
                arm=subject.arm, target=subject.target, device=measured.device, dtype=subject.dtype,
                tokens=subject.tokens, capacity=subject.capacity, launch=launch.number, kernel=launch.kernel,
                rows=launch.rows, payload_rows=launch.payload_rows, bytes=launch.bytes,
                static_bytes=launch.counted.bytes, accesses=launch.accesses, share=self.accesses.share,
                step_processor_seconds=measured.step_seconds, torch=measured.torch, triton=measured.triton,
            )  # fmt: skip
        for call in self.accesses.calls:
            yield LibraryRow(
                "deepstack", "library", measured.family, subject.revision, subject.target, call.operation,
                call.operands, call.bytes, call.unwritten,
            )  # fmt: skip


def executed(subject: Subject, measured: Measurement) -> ExecutedStep:
    """Return the launches of a measured step.

    Raises `NotMeasured` where these are not the generated kernels in their order.
    """
    if measured.accesses is None:
        raise NotMeasured("no launch was interpreted")
    counted = [kernel for call in measured.calls for kernel in call.generated]
    found = [
        (number, tuple(accesses))
        for number, accesses in groupby(measured.accesses.accesses, key=lambda access: access.launch)
    ]
    _check([accesses[0].kernel for _, accesses in found], [kernel.function for kernel in counted])
    launches = (
        ExecutedLaunch(number, accesses[0].kernel, accesses, kernel)
        for (number, accesses), kernel in zip(found, counted, strict=True)
    )
    return ExecutedStep(subject, measured, measured.accesses, tuple(launches))


def _check(launched: Sequence[str], generated: Sequence[str | None]) -> None:
    if list(launched) != list(generated):
        raise NotMeasured(
            f"{len(generated)} kernels were generated and {len(launched)} launched, or in another order: "
            f"{', '.join(map(str, generated))} against {', '.join(launched)}"
        )
