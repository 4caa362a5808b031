"""The table of `audit` over several engines: one line for each source, one column for each rule."""

from collections.abc import Iterable, Mapping, Sequence

from deepstack_harness.auditing.audited_source import AuditedSource
from deepstack_harness.contract.case import Regime
from deepstack_harness.contract.row import Row
from deepstack_harness.contract.rules import Rule, names_of
from deepstack_harness.contract.verdicts import BROKEN, KEPT, Verdict
from deepstack_harness.reporting.terminal.output import Column, Output

NOT_READ = "the engine has nothing that is read and judged by it"
_LEGEND = "K kept, B broken, Bc broken under graphs alone, - cannot be asked, ? not judged"
_CELL = Column(3)


def show_engine_rules(output: Output, audited: Sequence[AuditedSource]) -> None:
    """Print the table where sources of two packages were audited, and why a rule cannot be asked."""
    if len({one.package for one in audited}) < 2:
        return
    rows = {one.label: [row for each in one.standings for row in each.rows] for one in audited}
    asked = {row.rule for found in rows.values() for row in found}
    rules = [rule for rule in Rule if rule in asked]
    columns = [Column(max(6, *map(len, rows))), *(_CELL for _ in rules)]
    output.line(f"engine and rule ({_LEGEND})", "bold")
    output.row(columns, ["source", *map(str, rules)], "dim")
    for label, found in rows.items():
        output.row(columns, [label, *(cell_of(row for row in found if row.rule is rule) for rule in rules)])
    for (label, reason), without in _reasons(rows, rules).items():
        output.row((Column(2), Column(0)), ["", f"- {names_of(without)} ({label}): {reason}"])
    output.line()


def cell_of(rows: Iterable[Row]) -> str:
    """Return the cell of one rule from its rows in all classes and regimes."""
    rows = list(rows)
    verdicts = {row.verdict for row in rows}
    if broken := [row for row in rows if row.verdict in BROKEN]:
        return "Bc" if all(row.regime is Regime.CAPTURED for row in broken) else "B"
    if Verdict.ERROR in verdicts:
        return "?"
    return "K" if verdicts & set(KEPT) else "-"


def _reasons(rows: Mapping[str, Sequence[Row]], rules: Sequence[Rule]) -> dict[tuple[str, str], set[Rule]]:
    """Return the rules that cannot be asked, by the sources that share a reason and the reason."""
    sources: dict[tuple[Rule, str], list[str]] = {}
    for label, found in rows.items():
        for rule in rules:
            of_rule = [row for row in found if row.rule is rule]
            if cell_of(of_rule) == "-":
                reason = next((row.detail for row in of_rule), NOT_READ)
                sources.setdefault((rule, reason), []).append(label)
    reasons: dict[tuple[str, str], set[Rule]] = {}
    for (rule, reason), labels in sources.items():
        reasons.setdefault((", ".join(labels), reason), set()).add(rule)
    return reasons
