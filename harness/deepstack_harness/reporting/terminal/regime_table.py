"""The table of `check`: rules against regimes, and what was seen of each broken rule."""

from collections.abc import Iterable

from deepstack_harness.auditing.regimes import RULES, WHO_IS_CAPTURED, Standings
from deepstack_harness.contract.case import Regime
from deepstack_harness.contract.contract_text import WHERE, quoted
from deepstack_harness.contract.row import Row
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.verdicts import Verdict, worst
from deepstack_harness.oracles.judged_case import JudgedCase
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
    rows = [row for standing in standings.of.values() for row in standing.rows]
    told = [*standings.findings, *((row, ()) for row in rows if row.verdict is Verdict.ERROR)]
    for rule in sorted({row.rule for row, _ in told}, key=list(Rule).index):
        output.line()
        output.line(quoted(rule), "bold")
        for row, also in (finding for finding in told if finding[0].rule is rule):
            output.line(f"  {row.regime}: {figure_of(row)} on '{row.trace}': {row.detail}")
            for effect in also:
                output.line(
                    f"    also {effect.rule} {effect.regime}: {figure_of(effect)} on '{effect.trace}'"
                )
    if told:
        output.line()
        output.line(WHERE)
    captured = standings.of.get(Regime.CAPTURED)
    if captured and captured.broken:
        output.line(f"captured: {WHO_IS_CAPTURED}")


def show_advice(output: Output, standings: Standings, cases: Iterable[JudgedCase]) -> None:
    """Print what became of counts that are no Python int; no rule is about them, and no row has them."""
    known = {rule for standing in standings.of.values() for rule in standing.broken}
    told = [
        f"  {said.detail}"
        for judged in cases
        for said in judged.judgements
        if said.verdict is Verdict.FAIL and said.rule not in known
    ]
    if told:
        output.line()
        output.line("advisory: counts that are no Python int; the contract lets a buffer refuse them")
        for text in told:
            output.line(text)


def _row_of(standings: Standings, regime: Regime, rule: Rule) -> Row:
    return next(row for row in standings.of[regime].rows if row.rule is rule)
