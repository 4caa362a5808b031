"""Rows and where they came from, and deviations of rows and calls from what the contract wants."""

from collections.abc import Iterable
from dataclasses import dataclass

from deepstack_harness.contract.observation import RowRange
from deepstack_harness.contract.rules import Rule

RowOrigin = tuple[int | None, int, int]
"""Origin of one row: (payload, level, row), as in `deepstack_harness.contract.observation.RowRange`."""


@dataclass(frozen=True)
class Deviation:
    """Wrong rows, or calls that went wrong, of one step.

    `first_row` is the lowest number of a wrong row in the step (None: no row is wrong), `real_rows` the
    number of rows that belong to real tokens; rows behind them are padding.  `raised`: a call raised that
    had to answer.  `step` is the number of the step, from 1.
    """

    rule: Rule
    amount: int
    unit: str
    detail: str
    first_row: int | None = None
    real_rows: int = 0
    raised: bool = False
    step: int = 0

    @property
    def is_real(self) -> bool:
        """Say whether a wrong row belongs to a real token."""
        return self.first_row is not None and self.first_row < self.real_rows


def origins_of(ranges: Iterable[RowRange]) -> list[RowOrigin]:
    """Return the origin of each row; rows of a payload count up, all others share one origin."""
    return [
        (payload, level, row + offset if payload and payload > 0 else row)
        for payload, level, row, count in ranges
        for offset in range(count)
    ]
