"""Results of a call to a worker: an answer, an exception, or the end of the worker."""

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Generic

from deepstack_harness import errors
from deepstack_harness.errors import ExitCode, HarnessError, MachineError, UsageError
from deepstack_harness.workers.remote import Result

_BY_EXIT_CODE: Mapping[int, type[HarnessError]] = MappingProxyType(
    {ExitCode.USAGE: UsageError, ExitCode.MACHINE: MachineError}
)


@dataclass(frozen=True, kw_only=True)
class FinishedCall:
    """A finished call: the facts that it sent, in order, and the end of what it printed."""

    facts: tuple[Any, ...] = ()
    output: str = ""


@dataclass(frozen=True)
class Answered(FinishedCall, Generic[Result]):
    """A call that returned `value`."""

    value: Result


@dataclass(frozen=True)
class RaisedInWorker(FinishedCall):
    """A call that raised; the worker can be called again.

    `where` has file:line of each frame, the innermost last.  `exit_code` is that of a `HarnessError`, and
    None for any other exception.
    """

    type: str
    module: str
    message: str
    where: Sequence[str] = ()
    exit_code: int | None = None

    @property
    def sentence(self) -> str:
        """The message of an error of ours; the class name and the message of any other exception."""
        if self.exit_code is not None:
            return self.message
        return f"{self.type}: {self.message}".removesuffix(": ")

    @property
    def as_error(self) -> HarnessError:
        """The same error, to be raised in this process; an exception that is not ours becomes our bug."""
        if self.exit_code is None:
            place = f" ({self.where[-1]})" if self.where else ""
            return HarnessError(f"{self.sentence}{place}")
        kind = getattr(errors, self.type, None) if self.module == errors.__name__ else None
        if not (isinstance(kind, type) and issubclass(kind, HarnessError)):
            kind = _BY_EXIT_CODE.get(self.exit_code, HarnessError)
        return kind(self.message)


@dataclass(frozen=True, kw_only=True)
class WorkerEnd(FinishedCall):
    """The end of a worker, which cannot be called again; `phase` is the last one that it announced.

    `advice` says which limit ended it and how to raise that, where it was a limit that can be raised.
    """

    phase: str = ""
    advice: str = ""

    @property
    def reason(self) -> str:
        """The way it ended, such as "ended by SIGSEGV"."""
        raise NotImplementedError

    @property
    def sentence(self) -> str:
        """The reason and the phase, such as "ended by SIGSEGV in method get, step 3"."""
        return f"{self.reason} in {self.phase}" if self.phase else self.reason

    def _advised(self, reason: str) -> str:
        return f"{reason} ({self.advice})" if self.advice else reason


@dataclass(frozen=True)
class TimedOut(WorkerEnd):
    """Timeout: no answer within `seconds`, or no phase or fact for that long."""

    seconds: float

    @property
    def reason(self) -> str:
        """The seconds without an answer."""
        return self._advised(f"no answer within {self.seconds:g} s")


@dataclass(frozen=True)
class RanOutOfMemory(WorkerEnd):
    """End of a worker in which an allocation failed.

    The failure may have left anything half done, so the worker was ended.
    """

    message: str

    @property
    def reason(self) -> str:
        """The message of the exception, with the limit and what raises it."""
        return self._advised(self.message)


@dataclass(frozen=True)
class Signalled(WorkerEnd):
    """End of a worker by the signal of this number."""

    number: int

    @property
    def name(self) -> str:
        """The name of the signal, such as "SIGSEGV"."""
        try:
            return signal.Signals(self.number).name
        except ValueError:  # a real-time signal has none
            return f"signal {self.number}"

    @property
    def reason(self) -> str:
        """The signal."""
        return self._advised(f"ended by {self.name}")


@dataclass(frozen=True)
class Exited(WorkerEnd):
    """Exit of a worker by itself, with this status."""

    status: int

    @property
    def reason(self) -> str:
        """The status."""
        return f"exited with {self.status}"


@dataclass(frozen=True)
class Flooded(WorkerEnd):
    """End of a worker that printed or sent `size` bytes, more than its limit."""

    size: int

    @property
    def reason(self) -> str:
        """The bytes that were counted."""
        return self._advised(f"printed {self.size} bytes or more")


@dataclass(frozen=True)
class Crowded(WorkerEnd):
    """End of a worker that had started `count` processes; `limit` may run at a time."""

    count: int
    limit: int

    @property
    def reason(self) -> str:
        """The number of processes that was counted."""
        return self._advised(f"had {self.count} processes or more, the limit is {self.limit}")


@dataclass(frozen=True)
class SentGarbage(WorkerEnd):
    """End of a worker whose answer pipe was closed, or that sent something other than a message."""

    sent: str

    @property
    def reason(self) -> str:
        """The beginning of what came instead of a message."""
        return f"sent no message, but {self.sent}"


@dataclass(frozen=True)
class Stopped(WorkerEnd):
    """End of a worker that this process stopped."""

    @property
    def reason(self) -> str:
        """The process that ended it."""
        return "ended by the process that started it"


CallResult = Answered[Result] | RaisedInWorker | WorkerEnd


def value_of(result: CallResult[Result], doing: str) -> Result:
    """Return the value of an answered call; `doing` says what the call was for, such as "timing steps".

    Raises an error of ours as it was raised in the worker, `HarnessError` for any other exception, and
    `MachineError` where the worker ended.
    """
    match result:
        case Answered():
            return result.value
        case RaisedInWorker(exit_code=None):
            raise HarnessError(f"{doing}: {result.as_error}")
        case RaisedInWorker():
            raise result.as_error
        case WorkerEnd():
            raise MachineError(f"{doing}: {result.sentence}{_last_line(result.output)}")


def _last_line(output: str) -> str:
    last = output.strip().rpartition("\n")[2]
    return f"; printed at the end: {last}" if last else ""


def end_of(status: int, **fields: Any) -> WorkerEnd:
    """Return the end that an exit status stands for, negative for a signal; `fields` are those of any end."""
    return Exited(status=status, **fields) if status >= 0 else Signalled(number=-status, **fields)
