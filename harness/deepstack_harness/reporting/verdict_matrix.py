"""The verdict matrix: families and sources against the rules R0 to R14, the worst verdict in each cell."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from deepstack_harness.contract.row import Row
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.verdicts import OPENED, Verdict, worst
from deepstack_harness.reporting.run_data import RunData


@dataclass(frozen=True)
class Cell:
    """All judgements of one rule in one line of the matrix."""

    rule: Rule
    rows: tuple[Row, ...]

    @cached_property
    def verdict(self) -> Verdict:
        """The worst verdict of its judgements."""
        return worst(row.verdict for row in self.rows)

    @property
    def times(self) -> int:
        """The number of judgements with that verdict."""
        return sum(row.verdict == self.verdict for row in self.rows)

    @property
    def opened(self) -> tuple[Row, ...]:
        """The judgements with something to tell."""
        return tuple(row for row in self.rows if row.verdict in OPENED)


@dataclass(frozen=True)
class Line:
    """One line: `names` say what was judged, `cells` has None for a rule that was not."""

    names: tuple[str, ...]
    cells: tuple[Cell | None, ...]

    @property
    def verdicts(self) -> frozenset[Verdict]:
        """Every verdict of this line."""
        return frozenset(row.verdict for cell in self.cells if cell for row in cell.rows)


@dataclass(frozen=True)
class Matrix:
    """`heads` name the columns before the rules; only rules that something was judged by are there."""

    heads: tuple[str, ...]
    rules: tuple[Rule, ...]
    lines: tuple[Line, ...]


def run_matrix(run: RunData) -> Matrix:
    """Return families x arms x devices against rules."""
    return _matrix(("family", "arm", "device"), ((row.place, row) for row in run.rows))


def release_matrix(run: RunData) -> Matrix | None:
    """Return sources, their classes and both regimes against rules; None where no source was audited."""
    if run.audit is None:
        return None
    rows = ((row.source or row.revision, row.model_class or "-", row.regime or "-") for row in run.audit)
    return _matrix(("source", "class", "regime"), zip(rows, run.audit, strict=True))


def _matrix(heads: tuple[str, ...], rows: Iterable[tuple[tuple[str, ...], Row]]) -> Matrix:
    found: dict[tuple[str, ...], dict[Rule, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for names, row in rows:
        found[names][row.rule].append(row)
    rules = tuple(rule for rule in Rule if any(rule in cells for cells in found.values()))
    return Matrix(heads, rules, tuple(_line(names, rules, cells) for names, cells in found.items()))


def _line(names: tuple[str, ...], rules: Sequence[Rule], cells: dict[Rule, list[Row]]) -> Line:
    return Line(names, tuple(Cell(rule, tuple(cells[rule])) if rule in cells else None for rule in rules))
