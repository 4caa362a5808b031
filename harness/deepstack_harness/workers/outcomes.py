"""Results of a call to a worker: a value, an exception, or the end of the worker."""

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Generic, TypeGuard

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

    `where` has file:line of each frame, the innermost last. `exit_code` is that of a `HarnessError`, and
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


class EndKind(StrEnum):
    """Way in which a worker ended; the value is its sentence, with places for the details of an end."""

    TIMED_OUT = "no answer within {:g} s"
    """No result within these seconds, or no phase or fact for that long."""
    OUT_OF_MEMORY = "{}"
    """An allocation failed, with this message; that may have left anything half done."""
    SIGNALLED = "ended by {}"
    EXITED = "exited with {}"
    FLOODED = "printed {} bytes or more"
    """It printed or sent this much, more than its limit."""
    CROWDED = "had {} processes or more, the limit is {}"
    SENT_GARBAGE = "sent no message, but {}"
    """Its message pipe was closed, or brought something other than a message."""
    STOPPED = "ended by the process that started it"


@dataclass(frozen=True)
class WorkerEnd(FinishedCall):
    """The end of a worker, which cannot be called again; `phase` is the last one that it announced.

    `details` are the figures of its kind. `status` is the exit status of a process that ended by itself or
    by a signal, negative for the signal. `advice` names the limit that ended it and how to raise that,
    where it was a limit that can be raised.
    """

    kind: EndKind
    details: tuple[Any, ...] = ()
    phase: str = ""
    advice: str = ""
    status: int | None = None

    @property
    def reason(self) -> str:
        """The way it ended, such as "ended by SIGSEGV"."""
        reason = self.kind.format(*self.details)
        return f"{reason} ({self.advice})" if self.advice else reason

    @property
    def sentence(self) -> str:
        """The reason and the phase, such as "ended by SIGSEGV in method get, step 3"."""
        return f"{self.reason} in {self.phase}" if self.phase else self.reason


CallResult = Answered[Result] | RaisedInWorker | WorkerEnd


def is_end(result: CallResult | None, kind: EndKind) -> TypeGuard[WorkerEnd]:
    """Return whether a result is an end of this kind."""
    return isinstance(result, WorkerEnd) and result.kind is kind


def value_of(result: CallResult[Result], doing: str) -> Result:
    """Return the value of a call that returned; `doing` describes the call, such as "timing steps".

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
            last = result.output.strip().rpartition("\n")[2]
            printed = f"; printed at the end: {last}" if last else ""
            raise MachineError(f"{doing}: {result.sentence}{printed}")


def end_of(status: int, **fields: Any) -> WorkerEnd:
    """Return the end that an exit status means, negative for a signal; `fields` are those of any end."""
    if status >= 0:
        return WorkerEnd(EndKind.EXITED, (status,), status=status, **fields)
    try:
        name = signal.Signals(-status).name
    except ValueError:  # a real-time signal has none
        name = f"signal {-status}"
    return WorkerEnd(EndKind.SIGNALLED, (name,), status=status, **fields)
