"""The table of `check`: rules against regimes, and what was seen of each broken rule."""

from deepstack_harness.auditing.regimes import RULES, WHO_IS_CAPTURED, Standings
from deepstack_harness.contract.case import Regime
from deepstack_harness.contract.contract_text import WHERE, quoted
from deepstack_harness.contract.row import Row
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.verdicts import BROKEN, Verdict, worst
from deepstack_harness.reporting.terminal.audit_table import figure_of
from deepstack_harness.reporting.terminal.output import Column, Output

_COLUMNS = [Column(3), Column(9), Column(10), Column(10), Column(0)]


def show_regimes(output: Output, standings: Standings) -> None:
    """Print a line per rule with its verdict in each regime, then every broken rule in full."""
    output.row(_COLUMNS, ["", "", *(str(regime) for regime in standings.of), ""], "dim")
    for rule in RULES:
        rows = [_row_of(standings, regime, rule) for regime in standings.of]
        verdict = worst(row.verdict for row in rows)
        why = rows[0].detail if verdict is Verdict.SKIP else ""
        output.row(_COLUMNS, [rule, rule.word, *(row.verdict.word for row in rows), why], verdict.style)
    told = [row for standing in standings.of.values() for row in standing.rows if _has_to_be_told(row)]
    for rule in dict.fromkeys(row.rule for row in told):
        output.line()
        output.line(quoted(rule), "bold")
        for row in (row for row in told if row.rule is rule):
            output.line(f"  {row.regime}: {figure_of(row)} on '{row.trace}': {row.detail}")
    if told:
        output.line()
        output.line(WHERE)
    captured = standings.of.get(Regime.CAPTURED)
    if captured and captured.broken:
        output.line(f"captured: {WHO_IS_CAPTURED}")


def _has_to_be_told(row: Row) -> bool:
    return row.verdict in BROKEN or row.verdict is Verdict.ERROR


def _row_of(standings: Standings, regime: Regime, rule: Rule) -> Row:
    return next(row for row in standings.of[regime].rows if row.rule is rule)
