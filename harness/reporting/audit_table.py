"""What `check` and `audit` show: rules broken and kept, with figures and traces."""

from collections.abc import Iterable

from harness.case import Row
from harness.reporting.output import Column, Output
from harness.rules import Rule, Verdict
from harness.runner.audit import Standing

_STYLES = {Verdict.FAIL: "red", Verdict.ERROR: "yellow", Verdict.SKIP: "dim"}
_WORDS = {
    Verdict.FAIL: "broken",
    Verdict.ERROR: "not judged",
    Verdict.PASS: "kept",
    Verdict.SKIP: "not tested",
}


def show_standing(output: Output, standing: Standing) -> None:
    """One line per rule; for a broken one the figure, the trace and what was seen."""
    columns = [Column(3), Column(9), Column(10), Column(10), Column(0)]
    for row in standing.rows:
        verdict = Verdict(row.verdict)
        cells = [row.rule, Rule(row.rule).word, _WORDS[verdict], figure(row), _words(row)]
        output.row(columns, cells, _STYLES.get(verdict, ""))


def figure(row: Row) -> str:
    """`12 rows`, for rows that carry one."""
    return "" if row.value is None or row.verdict != Verdict.FAIL else f"{row.value:g} {row.unit}"


def names(rules: Iterable[Rule]) -> str:
    """Rules in their order."""
    wanted = set(rules)
    return " ".join(rule for rule in Rule if rule in wanted) or "none"


def _words(row: Row) -> str:
    if row.verdict == Verdict.FAIL:
        return f"'{row.trace}': {row.detail}"
    return row.detail
