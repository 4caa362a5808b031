"""Time that is left for a list of cases: estimated by backend, corrected by what was measured."""

import time
from collections.abc import Sequence

from deepstack_harness.contract.arm_spec import Backend
from deepstack_harness.contract.case import Case

_FIRST_S = {
    Backend.NONE: 0.5,
    Backend.EAGER: 1.5,
    Backend.AOT_EAGER: 3.0,
    Backend.INDUCTOR: 12.0,
    Backend.H200: 40.0,
}
"""Seconds of the first case of a backend in a process, imports included, on two idle cores."""
_NEXT_S = {
    Backend.NONE: 0.05,
    Backend.EAGER: 0.3,
    Backend.AOT_EAGER: 1.0,
    Backend.INDUCTOR: 4.0,
    Backend.H200: 20.0,
}
_RANKS_S = 6.0
"""Added for an arm with ranks: processes start and meet."""
_TRUSTED_S = 3.0
"""Weight of the estimate against what was measured: the first cases take less than their spread."""


class CaseClock:
    """Clock of cases that are played one after the other; reported, never a limit."""

    def __init__(self, cases: Sequence[Case]) -> None:
        """Estimate every case; nothing runs yet."""
        backends = [case.arm.backend for case in cases]
        self._expected = [
            (_FIRST_S if backend not in backends[:number] else _NEXT_S)[backend]
            + (_RANKS_S if cases[number].arm.ranks > 1 else 0)
            for number, backend in enumerate(backends)
        ]
        self._done = 0
        self._measured = 0.0
        self._began = 0.0

    def begin(self) -> str:
        """Start the next case; return its number, and the time that this and the following will take."""
        self._began = time.monotonic()
        return f"{self._done + 1} of {len(self._expected)}, about {self.seconds_left():.0f} s left"

    def end(self) -> None:
        """End the case that was begun last."""
        self._measured += time.monotonic() - self._began
        self._done += 1

    def seconds_left(self) -> float:
        """Return the estimate for what is not done, scaled by how this machine did so far."""
        done, left = sum(self._expected[: self._done]), sum(self._expected[self._done :])
        return left * (self._measured + _TRUSTED_S) / (done + _TRUSTED_S)
