"""One call that may go wrong: its value, what it raised, or that there is no such call."""

import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import torch

from deepstack_harness.compile.torch_compat.dynamo import is_compiler_fault
from deepstack_harness.contract.observation import METHODS, CallName, Raised
from deepstack_harness.errors import (
    HarnessError,
    OutOfMemory,
    StepUnavailable,
    is_out_of_memory,
    passes_through,
    text_of,
)
from deepstack_harness.workers.limits import advice_about

T = TypeVar("T")
_TORCH = str(Path(torch.__file__).parent)
_PACKAGE = str(Path(__file__).resolve().parents[1])


class CallFailed(Exception):
    """An exception of a call inside another one, so that the innermost call is named."""

    def __init__(self, call: CallName, error: BaseException) -> None:
        """Wrap `error`, which came out of `call`."""
        super().__init__(text_of(error))
        self.call = call
        self.error = error


@dataclass(frozen=True)
class Attempt(Generic[T]):
    """Result of one call: a value, or what it raised, or that there is no such call."""

    value: T | None = None
    raised: Raised | None = None
    unavailable: str | None = None

    @property
    def returned(self) -> bool:
        """True if the call came back."""
        return self.raised is None and self.unavailable is None


class _Phase:
    """The call that is under way, announced to whoever wants to know where a process ended."""

    def __init__(self) -> None:
        self.announce: Callable[[str], None] | None = None
        self.call = ""

    def enter(self, call: str) -> str:
        outer, self.call = self.call, call
        if self.announce is not None:
            self.announce(call)
        return outer

    def leave(self, outer: str) -> None:
        self.call = outer
        if outer and self.announce is not None:
            self.announce(outer)


_LONGEST = 4000
"""Characters of a message that are recorded: every row repeats it, and code under test may raise 100 MB."""
_PHASE = _Phase()


@contextmanager
def announcing(announce: Callable[[str], None]) -> Iterator[None]:
    """Call `announce` with the name of every call that begins while this is open."""
    _PHASE.announce, _PHASE.call = announce, ""
    try:
        yield
    finally:
        _PHASE.announce = None


def attempt(call: CallName, function: Callable[[], T], *, runs_out: bool = False) -> Attempt[T]:
    """Call `function` and return what came of it; errors of the harness itself are raised again.

    `runs_out`: an allocation inside is made to fail, so that exhausted memory is a fact like any exception.
    """
    outer = _PHASE.enter(call)
    try:
        result = Attempt(value=function())
    except CallFailed as failed:
        result = Attempt(raised=_raised(failed.call, failed.error, runs_out=runs_out))
    except BaseException as error:  # SystemExit of a method is a fact too
        if isinstance(error, StepUnavailable) and not _is_foreign(call, error):
            result = Attempt(unavailable=text_of(error))
        elif _passes(call, error):
            raise
        else:
            result = Attempt(raised=_raised(call, error, runs_out=runs_out))
    _PHASE.leave(outer)
    return result


def naming(call: CallName, function: Callable[[], T]) -> T:
    """Call `function` inside another attempt: what it raises is named after `call`."""
    outer = _PHASE.enter(call)
    try:
        value = function()
    except CallFailed:
        raise
    except BaseException as error:
        if _passes(call, error) or (isinstance(error, StepUnavailable) and not _is_foreign(call, error)):
            raise
        raise CallFailed(call, error) from error
    _PHASE.leave(outer)
    return value


def _passes(call: CallName, error: BaseException) -> bool:
    """Return True for what is no fact of the call: our own errors, Ctrl-C, and the end of a test."""
    if isinstance(error, HarnessError):
        return not _is_foreign(call, error)
    return passes_through(error)


def _is_foreign(call: CallName, error: BaseException) -> bool:
    """Return True if a method under test raised an error of ours itself.

    `StepUnavailable` means that a buffer has no resize; from other methods it is an exception like any other.
    """
    if call not in METHODS or (call == "resize" and isinstance(error, StepUnavailable)):
        return False
    frames = traceback.extract_tb(error.__traceback__)
    return not frames[-1].filename.startswith(_PACKAGE)


def _raised(call: CallName, error: BaseException, *, runs_out: bool) -> Raised:
    """Return the fact; raises `OutOfMemory` where memory ran out by itself: that is no fact of the call."""
    lies = isinstance(error, HarnessError) and _is_foreign(call, error)
    # Python's own MemoryError has no text: with one it is the way in which a buffer refuses.
    refuses = type(error) is MemoryError and bool(error.args) and call in METHODS
    if is_out_of_memory(error) and not (lies or runs_out or refuses):
        raise OutOfMemory(f"{call} ran out of memory: {text_of(error)}") from None
    advice = advice_about(error)
    message = (text_of(error)[:_LONGEST].strip().splitlines() or [""])[0] + (f" ({advice})" if advice else "")
    where = None
    with suppress(Exception):  # the attribute of an exception of code under test may raise anything
        where = getattr(error, "where", None)  # of one that was raised in another process
    if not (isinstance(where, str) and where):
        frames = traceback.extract_tb(error.__traceback__)
        outside = [frame for frame in frames if not frame.filename.startswith(_TORCH)]
        where = f"{outside[-1].filename}:{outside[-1].lineno}"
    ends = not isinstance(error, Exception)
    by_compiler = call == "decoder" and is_compiler_fault(error)
    return Raised(type(error).__name__, message, call, where, ends, by_compiler)
