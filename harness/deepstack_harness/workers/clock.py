"""Deadlines of a call of a worker."""

import math
import time


class Clock:
    """The deadlines of a call: for all of it, and for its next phase or fact."""

    def __init__(self, call_s: float | None, step_s: float | None = None) -> None:
        """Start both, in seconds; None is no deadline."""
        self._call_s, self._step_s = call_s, step_s
        self._over = _after(call_s)
        self._step_over = _after(step_s)

    @property
    def limit_s(self) -> float | None:
        """Seconds of the earlier deadline."""
        return self._step_s if self.is_of_a_step else self._call_s

    @property
    def is_of_a_step(self) -> bool:
        """True where the deadline of the step is the earlier one."""
        return self._step_over < self._over

    @property
    def is_over(self) -> bool:
        """True after the deadline of the call."""
        return time.monotonic() >= self._over

    def earlier(self, other: float | None) -> float | None:
        """Return the earliest deadline; None where there is none."""
        earliest = min(self._over, self._step_over, math.inf if other is None else other)
        return None if earliest == math.inf else earliest

    def renew(self) -> bool:
        """Begin the next step; return False where steps have no limit."""
        self._step_over = _after(self._step_s)
        return self._step_s is not None


def _after(seconds: float | None) -> float:
    return math.inf if seconds is None else time.monotonic() + seconds
