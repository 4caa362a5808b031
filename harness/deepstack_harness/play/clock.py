"""A clock that a trace moves: Python code sees time pass, and no test has to wait.

`time.time`, `monotonic` and `perf_counter`, and their forms in nanoseconds, are replaced by functions that
add the seconds that the trace has let pass. Only the thread that plays sees them, so that timeouts of
others stay what they are. A module that ran `from time import monotonic` before calls the real function.
"""

import functools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_SECONDS = ("time", "monotonic", "perf_counter")
_NANOSECONDS = tuple(f"{name}_ns" for name in _SECONDS)


class _Passed(threading.local):
    """Seconds that the case of this thread has let pass."""

    seconds = 0


_PASSED = _Passed()
_REAL: dict[str, Callable[[], float]] = {}
"""The functions of `time` by name, once they are replaced."""


def install() -> None:
    """Replace the functions of `time` for the rest of the process; does nothing the second time.

    Until `let_pass` is called, they return what they did before.
    """
    for name in (*_SECONDS, *_NANOSECONDS):
        if name not in _REAL:
            _REAL[name] = getattr(time, name)
            setattr(time, name, _moved(_REAL[name], 10**9 if name in _NANOSECONDS else 1))


def let_pass(seconds: int) -> None:
    """Let time pass for the case of this thread."""
    install()
    _PASSED.seconds += seconds


@contextmanager
def own_time() -> Iterator[None]:
    """Undo at the end what `let_pass` did: the clock of a case is its own."""
    before = _PASSED.seconds
    try:
        yield
    finally:
        _PASSED.seconds = before


def _moved(read: Callable[[], float], unit: int) -> Callable[[], float]:
    @functools.wraps(read)
    def moved() -> float:
        return read() + unit * _PASSED.seconds

    return moved
