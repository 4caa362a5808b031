"""Gates of `audit`: the findings that turn its exit code to 1."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from deepstack_harness.auditing.standing import Standing
from deepstack_harness.catalogue.reach import DEFAULT, FLAG, UNKNOWN
from deepstack_harness.contract.row import Row
from deepstack_harness.contract.verdicts import BROKEN, UNEXPECTED, Verdict

FindingKey = tuple[str, str, str, str]
"""Class, rule, regime and unit of the figure: what makes two findings of two versions the same fault."""


class Gate(StrEnum):
    """Findings that fail an audit.

    ANY: all, and known failures that are gone or were not put to the test.  NEW: those that no catalogue
    knows.  FLAG: those that default settings or a flag lead to.  DEFAULT: those that default settings lead
    to.  A fault of unknown reach counts in both, since nobody has read the orders of that engine.
    """

    ANY = "any"
    NEW = "new"
    FLAG = "flag"
    DEFAULT = "default"


@dataclass(frozen=True)
class GateResult:
    """Findings that fail an audit, and rules that were not judged, which fail every audit."""

    gate: Gate
    failing: tuple[Row, ...]
    unjudged: tuple[Row, ...]

    @property
    def holds(self) -> bool:
        """True if nothing fails."""
        return not (self.failing or self.unjudged)


def judge_gate(
    standings: Iterable[Standing], gate: Gate, base: Collection[FindingKey] | None = None
) -> GateResult:
    """Return what fails: the findings that `gate` lets count, of those that `base` does not have."""
    rows = [row for standing in standings for row in standing.rows]
    failing = [row for row in rows if _counts(row, gate, compared=base is not None)]
    if base is not None:
        failing = [row for row in failing if key_of(row) not in base]
    return GateResult(gate, tuple(failing), tuple(row for row in rows if row.verdict is Verdict.ERROR))


def keys_of(standings: Sequence[Standing]) -> frozenset[FindingKey]:
    """Return the findings of a base, known ones included."""
    return frozenset(key_of(row) for one in standings for row in one.rows if row.verdict in BROKEN)


def key_of(row: Row) -> FindingKey:
    """Return what stays the same of a finding from version to version."""
    return row.model_class or row.revision, row.rule, row.regime, row.unit


def _counts(row: Row, gate: Gate, *, compared: bool) -> bool:
    if row.verdict is Verdict.ERROR:
        return False
    if gate is Gate.ANY:
        # A mended fault is no fault that a change adds.
        return row.verdict in BROKEN or (row.verdict in UNEXPECTED and not compared)
    if row.verdict not in BROKEN:
        return False
    reach = row.reach or UNKNOWN
    match gate:
        case Gate.NEW:
            return row.verdict is Verdict.FAIL
        case Gate.FLAG:
            return reach in (DEFAULT, UNKNOWN) or reach.startswith(FLAG)
    return reach in (DEFAULT, UNKNOWN)
