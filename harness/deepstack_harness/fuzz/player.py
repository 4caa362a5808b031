"""Players of traces: a warm worker, which is replaced when it broke, or this process."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Protocol

from deepstack_harness.contract.case import BufferRef, Case
from deepstack_harness.contract.observation import Observation
from deepstack_harness.errors import HarnessError, MachineError, OutOfMemory
from deepstack_harness.play.case_worker import BIND, BIND_SOURCE, PLAY_ALONE, PLAY_SHARED, WORK, is_foreign
from deepstack_harness.play.loading import BoundBuffer
from deepstack_harness.workers.outcomes import (
    Answered,
    EndKind,
    RaisedInWorker,
    WorkerEnd,
    value_of,
)
from deepstack_harness.workers.profiles import FOREIGN_LIMITS, SandboxProfile
from deepstack_harness.workers.remote import Remote
from deepstack_harness.workers.worker import Worker

_BINDING_S = 300.0
"""Seconds for finding a buffer: a source may have to be fetched."""
_STEP_BYTES = 256 * 2**10
"""Bytes that one step may print; more is a finding."""
MEMORY_BYTES = 4 * 2**30
"""Bytes that a worker may use: torch takes 0.5 GiB, a trace far less. More is a finding, OUT_OF_MEMORY."""


class FindingKind(StrEnum):
    """Kind of a finding: a broken rule, or an end of the worker that played it."""

    RULE = "rule"
    HANG = "hang"
    CRASH = "crash"
    MEMORY = "memory"
    OUTPUT = "output"


_KINDS: Mapping[EndKind, FindingKind] = MappingProxyType(
    {
        EndKind.TIMED_OUT: FindingKind.HANG,
        EndKind.FLOODED: FindingKind.OUTPUT,
        EndKind.OUT_OF_MEMORY: FindingKind.MEMORY,
    }
)
"""Kinds by the end of the worker; every other end is a crash."""


@dataclass(frozen=True)
class Death:
    """The end of a worker while it played the step with this number, from 1."""

    kind: FindingKind
    step: int
    detail: str


class Player(Protocol):
    """A player of one case after the other."""

    torch: str
    """The version of torch that plays, as soon as a buffer was bound."""

    def bind(self, buffer: BufferRef | None, source: str | None, family: str) -> BufferRef:
        """Find a buffer, or the class of a source for a family, and return its reference.

        Raises `UsageError` for what does not exist, `MachineError` for a source that cannot be fetched.
        """
        ...

    def play(self, case: Case, *, new_session: bool) -> Observation | Death:
        """Play a case on the session of the cases before it, or on a new one."""
        ...

    def check(self, case: Case) -> Observation:
        """Play a case as `check` does; raises `HarnessError` where the worker ended."""
        ...


def _request(
    buffer: BufferRef | None, source: str | None, family: str
) -> tuple[Remote[BoundBuffer], Mapping[str, Any]]:
    """Return the function that finds a buffer, or the class of a source for a family, and its arguments."""
    if source is not None:
        return BIND_SOURCE, {"source": source, "family": family}
    if buffer is None:
        raise HarnessError("neither a buffer nor a source was named")
    return BIND, {"buffer": buffer}


class WorkerPlayer:
    """A worker that plays; after a death the next case starts another one. To be closed."""

    torch = ""

    def __init__(
        self,
        *,
        step_s: float = 20.0,
        memory_bytes: int = MEMORY_BYTES,
        sandbox: SandboxProfile | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Start the worker without waiting; `step_s` are the seconds that one step may take.

        Code under test needs a `sandbox`, and code that is interpreted an `environment`.
        """
        limits = replace(FOREIGN_LIMITS, call_s=None, step_s=step_s, memory=memory_bytes, output=_STEP_BYTES)
        self._worker = Worker(limits, preload=WORK, environment=environment, sandbox=sandbox)
        self._worker.launch()
        self._request: tuple[Remote[BoundBuffer], Mapping[str, Any]] | None = None
        self._bound_in = 0
        """Number of the worker process that has found the buffer."""

    def bind(self, buffer: BufferRef | None, source: str | None, family: str) -> BufferRef:
        """Find a buffer in the worker, and again in each worker that replaces it."""
        self._request = None
        request = _request(buffer, source, family)
        bound = self._bind(*request)
        self._request = request
        return bound

    def play(self, case: Case, *, new_session: bool) -> Observation | Death:
        """Play a case in the worker.

        Raises `MachineError` where no worker starts or this one was stopped, and `HarnessError` where it
        ended outside a step.
        """
        self._bind_again()
        result = self._worker.call(PLAY_SHARED, {"case": case, "new_session": new_session})
        match result:
            case Answered(value=observation):
                return observation
            case RaisedInWorker() if is_foreign(case) and result.exit_code is None:
                broke = f"the code that measures raised {result.sentence}"
                return Observation(case.dtype, case.device, 0, 0, "", (), error=broke, tampering=broke)
            case RaisedInWorker():
                raise result.as_error
            case WorkerEnd(kind=EndKind.STOPPED):
                raise MachineError(result.sentence)
            case WorkerEnd(facts=(*_, int(number))):  # the step under way, see `play_shared`
                return Death(_KINDS.get(result.kind, FindingKind.CRASH), number, result.sentence)
        printed = result.output.strip() or "nothing"
        raise HarnessError(f"the worker ended outside a step: {result.sentence}; it printed: {printed}")

    def check(self, case: Case) -> Observation:
        """Play a case in the worker, with the sizes of its family."""
        self._bind_again()
        return value_of(self._worker.call(PLAY_ALONE, {"case": case}), f"checking '{case.trace}'")

    def stop(self) -> None:
        """End the worker without waiting, and start no other one; from any thread."""
        self._worker.stop()

    def close(self) -> None:
        """End the worker."""
        self._worker.close()

    def _bind_again(self) -> None:
        """Find the buffer in a worker that replaced the one that had found it."""
        if self._request is not None and not (self._worker.alive and self._worker.starts == self._bound_in):
            self._bind(*self._request)

    def _bind(self, remote: Remote[BoundBuffer], arguments: Mapping[str, Any]) -> BufferRef:
        result = self._worker.call(remote, arguments, timeout_s=_BINDING_S)
        bound = value_of(result, "binding the buffer")
        self.torch, self._bound_in = bound.torch, self._worker.starts
        return bound.buffer


class InProcessPlayer:
    """Player inside this process, for tests and `selftest --workers 0`.

    Whatever ends a worker ends this process too.
    """

    torch = ""

    def bind(self, buffer: BufferRef | None, source: str | None, family: str) -> BufferRef:
        """Find a buffer in this process."""
        import torch

        from deepstack_harness.play import source_work, work

        torch.set_num_threads(1)  # as in a worker
        remote, arguments = _request(buffer, source, family)
        bound: BoundBuffer = (work if remote is BIND else source_work).bind_shared(**arguments)
        self.torch = bound.torch
        return bound.buffer

    def play(self, case: Case, *, new_session: bool) -> Observation | Death:
        """Play a case in this process."""
        from deepstack_harness.play.work import play_on_shared_session

        played: list[int] = []
        try:
            return play_on_shared_session(
                case, new_session=new_session, announce=lambda number, _: played.append(number)
            )
        except OutOfMemory as error:
            return Death(FindingKind.MEMORY, len(played), str(error))

    def check(self, case: Case) -> Observation:
        """Play a case in this process, with the sizes of its family."""
        from deepstack_harness.play.work import play_alone

        return play_alone(case)
