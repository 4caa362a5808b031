"""Players of traces: a warm worker, which is replaced when it broke, or this process."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from threading import Lock
from types import MappingProxyType
from typing import Any, Protocol

import msgspec

from deepstack_harness.contract.buffer_ref import BufferRef
from deepstack_harness.contract.case import Case
from deepstack_harness.contract.observation import Observation
from deepstack_harness.errors import HarnessError, MachineError, OutOfMemory
from deepstack_harness.workers.foreign import FOREIGN_LIMITS
from deepstack_harness.workers.outcomes import (
    Answered,
    CallResult,
    Flooded,
    RaisedInWorker,
    RanOutOfMemory,
    Stopped,
    TimedOut,
    WorkerEnd,
    value_of,
)
from deepstack_harness.workers.profiles import SandboxProfile
from deepstack_harness.workers.worker import Worker

_WORK = "deepstack_harness.play.shared_work"
_BINDING_S = 300.0
"""Seconds for finding a buffer: a source may have to be fetched."""
_STEP = "step "
_STEP_BYTES = 256 * 2**10
"""Bytes that one step may print; more is a finding."""
MEMORY_BYTES = 4 * 2**30


class FindingKind(StrEnum):
    """Kind of a finding: a broken rule, or an end of the worker that played it."""

    RULE = "rule"
    HANG = "hang"
    CRASH = "crash"
    MEMORY = "memory"
    OUTPUT = "output"


_KINDS: Mapping[type[WorkerEnd], FindingKind] = MappingProxyType(
    {TimedOut: FindingKind.HANG, Flooded: FindingKind.OUTPUT, RanOutOfMemory: FindingKind.MEMORY}
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


class WorkerPlayer:
    """A worker that plays; after a death the next case starts another one.  To be closed."""

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
        self._sandbox = sandbox
        self._environment = environment
        self._limits = replace(
            FOREIGN_LIMITS, call_s=None, step_s=step_s, memory=memory_bytes, output=_STEP_BYTES
        )
        self._request: Mapping[str, Any] | None = None
        self._lock = Lock()
        self._stopped = False
        self._worker = self._start()

    def bind(self, buffer: BufferRef | None, source: str | None, family: str) -> BufferRef:
        """Find a buffer in the worker, and again in each worker that replaces it."""
        self._request = None
        self._replace_if_ended()
        request = {"buffer": msgspec.to_builtins(buffer), "source": source, "family": family}
        found = self._bind(request)
        self._request = request
        return found

    def play(self, case: Case, *, new_session: bool) -> Observation | Death:
        """Play a case in the worker.

        Raises `MachineError` where no worker starts or this one was stopped, and `HarnessError` where it
        ended outside a step.
        """
        self._replace_if_ended()
        arguments = {"case": msgspec.to_builtins(case), "new_session": new_session}
        result = self._worker.call(f"{_WORK}:play_shared", arguments)
        match result:
            case Answered(value=value):
                return msgspec.convert(value, Observation)
            case RaisedInWorker():
                raise result.as_error
            case Stopped():
                raise MachineError(result.sentence)
            case WorkerEnd(phase=phase) if phase.startswith(_STEP):
                kind = _KINDS.get(type(result), FindingKind.CRASH)
                return Death(kind, int(phase.split()[1]), result.sentence)
        printed = result.output.strip() or "nothing"
        raise HarnessError(f"the worker ended outside a step: {result.sentence}; it printed: {printed}")

    def check(self, case: Case) -> Observation:
        """Play a case in the worker, with the sizes of its family."""
        self._replace_if_ended()
        result = self._worker.call(f"{_WORK}:play_on_its_own", {"case": msgspec.to_builtins(case)})
        return msgspec.convert(value_of(result, f"checking '{case.trace}'"), Observation)

    def stop(self) -> None:
        """End the worker without waiting, and start no other one; from any thread."""
        with self._lock:
            self._stopped = True
            self._worker.stop()

    def close(self) -> None:
        """End the worker."""
        self._worker.close()

    def _start(self) -> Worker:
        return Worker(self._limits, preload=_WORK, environment=self._environment, sandbox=self._sandbox)

    def _replace_if_ended(self) -> None:
        with self._lock:
            if self._worker.ended is None or self._stopped:
                return
            self._worker = self._start()
        if self._request is not None:
            self._bind(self._request)

    def _bind(self, request: Mapping[str, Any]) -> BufferRef:
        result: CallResult = self._worker.call(f"{_WORK}:bind", request, seconds=_BINDING_S)
        answer = value_of(result, "binding the buffer")
        self.torch = answer["torch"]
        return msgspec.convert(answer["buffer"], BufferRef)


class InProcessPlayer:
    """Player inside this process, for tests and `selftest --workers 0`.

    Whatever ends a worker ends this process too.
    """

    torch = ""

    def bind(self, buffer: BufferRef | None, source: str | None, family: str) -> BufferRef:
        """Find a buffer in this process."""
        from deepstack_harness.play import shared_work

        answer = shared_work.bind(msgspec.to_builtins(buffer), source, family)
        self.torch = answer["torch"]
        return msgspec.convert(answer["buffer"], BufferRef)

    def play(self, case: Case, *, new_session: bool) -> Observation | Death:
        """Play a case in this process."""
        from deepstack_harness.play.shared_work import play_on_shared_session

        played: list[int] = []
        try:
            return play_on_shared_session(
                case, new_session=new_session, announce=lambda number, _: played.append(number)
            )
        except OutOfMemory as error:
            return Death(FindingKind.MEMORY, len(played), str(error))

    def check(self, case: Case) -> Observation:
        """Play a case in this process, with the sizes of its family."""
        from deepstack_harness.play.shared_work import play_on_its_own

        return msgspec.convert(play_on_its_own(msgspec.to_builtins(case)), Observation)
