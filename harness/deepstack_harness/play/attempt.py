"""One call that may go wrong: its value, what it raised, or that there is no such call."""

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import torch

from deepstack_harness.contract.case import CallName, Raised
from deepstack_harness.errors import HarnessError, OutOfMemory, StepUnavailable, is_out_of_memory

T = TypeVar("T")
_TORCH = str(Path(torch.__file__).parent)


class CallFailed(Exception):
    """An exception of a call inside another one, so that the innermost call is named."""

    def __init__(self, call: CallName, error: Exception) -> None:
        """`error` came out of `call`."""
        super().__init__(str(error))
        self.call = call
        self.error = error


@dataclass(frozen=True)
class Attempt(Generic[T]):
    """What one call gave: a value, or what it raised, or that there is no such call."""

    value: T | None = None
    raised: Raised | None = None
    unavailable: str | None = None

    @property
    def returned(self) -> bool:
        """Whether the call came back."""
        return self.raised is None and self.unavailable is None


def attempt(call: CallName, function: Callable[[], T]) -> Attempt[T]:
    """Call `function` and keep what came of it; errors of the harness itself come through."""
    try:
        return Attempt(value=function())
    except HarnessError:
        raise
    except StepUnavailable as missing:
        return Attempt(unavailable=str(missing))
    except CallFailed as inner:
        return Attempt(raised=_raised(inner.call, inner.error))
    except Exception as error:  # noqa: BLE001  # whatever a buffer or a compiled call raises is a fact
        return Attempt(raised=_raised(call, error))


def naming(call: CallName, function: Callable[[], T]) -> T:
    """Call `function` inside another attempt: what it raises is named after `call`."""
    try:
        return function()
    except (HarnessError, StepUnavailable, CallFailed):
        raise
    except Exception as error:
        raise CallFailed(call, error) from error


def _raised(call: CallName, error: Exception) -> Raised:
    """The fact; where memory ran out it is none, and `OutOfMemory` is raised."""
    if is_out_of_memory(error):
        raise OutOfMemory(f"{call} ran out of memory: {error}") from None
    message = (str(error).strip().splitlines() or [""])[0]
    return Raised(type(error).__name__, message, call, _where(error))


def _where(error: Exception) -> str:
    elsewhere = getattr(error, "where", "")
    if elsewhere:  # it was raised in another process
        return str(elsewhere)
    frames = traceback.extract_tb(error.__traceback__)
    outside = [frame for frame in frames if not frame.filename.startswith(_TORCH)]
    return f"{outside[-1].filename}:{outside[-1].lineno}"
