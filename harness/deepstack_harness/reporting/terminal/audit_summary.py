"""The last lines of `audit`: what a gate lets through, and what matters of all that was found."""

from collections.abc import Iterable, Sequence

from deepstack_harness.auditing.audited_source import AuditedSource
from deepstack_harness.auditing.gates import Gate, GateResult
from deepstack_harness.catalogue.reach import DEFAULT
from deepstack_harness.contract.plural import plural
from deepstack_harness.contract.row import Row
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.verdicts import BROKEN, Verdict
from deepstack_harness.reporting.terminal.output import Output

_COUNTED = {
    Gate.ANY: "all faults count",
    Gate.NEW: "faults that no catalogue knows count",
    Gate.FLAG: "faults that default settings or a flag lead to count",
    Gate.DEFAULT: "faults that default settings lead to count",
}


def show_gate(output: Output, result: GateResult, base: str | None) -> None:
    """Print which findings turn the exit code to 1."""
    beside = f", where '{base}' does not have them" if base is not None else ""
    output.line(f"{_COUNTED[result.gate]}{beside}: {plural(len(result.failing), 'finding')}")
    for row in result.failing:
        output.line(f"  {row.rule} {row.model_class or row.revision} {row.where or ''}: {row.detail}", "red")
    output.line()


def show_summary(output: Output, audited: Sequence[AuditedSource], result: GateResult) -> None:
    """Print the last line: rules reached by default with their issues, new ones, and what users notice."""
    references = {key: text for one in audited for key, text in one.references.items()}
    rows = [row for one in audited for standing in one.standings for row in standing.rows]
    broken = [row for row in rows if row.verdict in BROKEN]
    reached = [row for row in broken if row.reach == DEFAULT]
    new = [row for row in broken if row.verdict is Verdict.FAIL]
    effects = sorted({str(row.effect) for row in reached if row.effect is not None})
    parts = [
        f"reached by default: {_rules(reached, references)}",
        f"New: {_rules(new, {})}",
        f"Effect: {', '.join(effects) or ('not measured' if reached else 'none')}",
    ]
    if result.unjudged:
        parts.append(f"Not judged: {_rules(result.unjudged, {})}")
    output.verdict(f"{'. '.join(parts)}.", good=result.holds)


def _rules(rows: Iterable[Row], references: dict[tuple[str, Rule], str]) -> str:
    """Return the rules in order, each with the numbers of the issues that wait for it."""
    found: dict[Rule, set[str]] = {}
    for row in rows:
        reference = references.get((row.model_class or row.revision, row.rule), "")
        found.setdefault(row.rule, set()).update(reference.split()[-1:])
    named = (
        f"{rule} ({', '.join(sorted(found[rule]))})" if found[rule] else str(rule)
        for rule in Rule
        if rule in found
    )
    return ", ".join(named) or "none"
