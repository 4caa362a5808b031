"""The tables of `audit`: the result, the findings, what was not judged, and the rules of each engine.

Classes with the same verdicts are folded into groups.  Several engines are shown in one table, a line for
each source and a column for each rule.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from deepstack_harness.audit.account import Account
from deepstack_harness.audit.audited_source import AuditedSource
from deepstack_harness.audit.class_verdicts import WHO_IS_CAPTURED, ClassVerdicts
from deepstack_harness.audit.gate import Gate, GateResult, subject_of
from deepstack_harness.catalogue.known import UNREPORTED
from deepstack_harness.catalogue.orders import DEFAULT, FLAG, LATENT, REACHES, UNKNOWN, reach_kind
from deepstack_harness.contract.case import Regime
from deepstack_harness.contract.rules import Rule, names_of
from deepstack_harness.contract.verdicts import BROKEN, KEPT, Row, Verdict
from deepstack_harness.document.blocks import (
    BLANK,
    Column,
    Document,
    Heading,
    Line,
    TextTable,
    outcome,
)
from deepstack_harness.document.shown import finding as finding_lines
from deepstack_harness.errors import ExitCode
from deepstack_harness.text import plural

if TYPE_CHECKING:
    from deepstack_harness.document.findings import ReportedRow


def show_findings(classes: Sequence[ClassVerdicts], *, latent: bool = False) -> Document:
    """Print every finding, the worst reach first; with `latent` those under calls that no engine makes."""
    groups = _groups(classes)
    for kind, title in _REACHES.items():
        findings = {
            letter: [(row, also) for row, also in members[0].findings if worst_reach((row, *also)) == kind]
            for letter, members in groups.items()
        }
        found = [letter for letter, of_group in findings.items() if of_group]
        if kind == LATENT and not latent and found:
            count = sum(len(groups[letter]) * len(findings[letter]) for letter in found)
            counts = (
                f"{plural(count, 'finding')} in {plural(sum(len(groups[label]) for label in found), 'class')}"
            )
            yield Line(f"{counts} under calls no engine makes today: --all shows them")
            yield BLANK
        elif found:
            yield Heading(title)
            for letter in found:
                yield Line(f"group {letter}, {'; '.join(_by_source(groups[letter]))}")
                for row, also in findings[letter]:
                    yield from finding_lines(row, also)
                yield BLANK


def show_groups(classes: Sequence[ClassVerdicts], audited: Sequence[AuditedSource]) -> Document:
    """Print the rules of each group, sources whose classes differ, and graphs that could not be replayed."""
    groups = _groups(classes)
    if groups:
        lines = []
        for letter, (first, *_) in groups.items():
            # What plays no trace has no regime, and is broken in any use.
            live = first.broken_in(Regime.LIVE) | first.broken_in(Regime.NONE)
            rules = (live, first.broken_in(Regime.CAPTURED), first.kept)
            lines.append(([letter, *map(names_of, rules)], ""))
        heads = map(Column, ("group", "broken live", "broken captured", "kept"))
        yield TextTable([*heads], lines)
        for letter, members in groups.items():
            yield Line("; ".join(_by_source(members)), lead=f"{letter:<7}")
        yield BLANK
    letters: dict[str, list[str]] = {}
    for letter, members in groups.items():
        for source in dict.fromkeys(member.source for member in members):
            letters.setdefault(source, []).append(letter)
    different = [f"{source}: groups {', '.join(own)}" for source, own in letters.items() if len(own) > 1]
    yield from _list("sources whose classes differ from each other", different)
    labels: dict[str, list[str]] = {}
    places: dict[str, str] = {}
    for judged in audited:
        for reason in judged.no_graphs:
            labels.setdefault(reason.text, []).append(judged.label)
            if reason.where:
                places.setdefault(reason.text, f", at {reason.where}")
    yield from _list("could not be replayed", [
        f"graphs ({', '.join(own)}): {why}{places.get(why, '')}" for why, own in labels.items()
    ])  # fmt: skip
    for verdicts in classes:
        yield from verdicts.rows


def show_end(classes: Sequence[ClassVerdicts]) -> Document:
    """Print the unexpected rules, and the closing line with all broken rules."""
    for title, verdict in (
        ("broken and not known before", Verdict.FAIL),
        ("known to break, and kept now", Verdict.IMPROVED),
        ("known to break, and not put to the test", Verdict.MISSING),
    ):
        yield from _list(title, [
            f"{verdicts.source} {verdicts.model_class} {names_of(rules)}"
            for verdicts in classes
            if (rules := verdicts.rules({verdict}))
        ])  # fmt: skip
    if any(verdicts.broken_in(Regime.CAPTURED) for verdicts in classes):
        yield Line(f"captured: {WHO_IS_CAPTURED}")
    yield from _list("not judged", [
        f"{verdicts.source} {verdicts.model_class} {names_of(verdicts.unjudged)}: {'; '.join(reasons)}"
        for verdicts in classes
        if (reasons := dict.fromkeys(row.detail for row in verdicts.rows if row.rule in verdicts.unjudged))
    ])  # fmt: skip
    broken = {rule for verdicts in classes for rule in verdicts.broken}
    unjudged = {rule for verdicts in classes for rule in verdicts.unjudged}
    judged = "1 class or helper" if len(classes) == 1 else f"{len(classes)} classes and helpers"
    text = f"{judged} judged, rules broken: {names_of(broken)}"
    if unjudged:
        text += f", not judged: {names_of(unjudged)}"
    yield outcome(text, good=not (broken or unjudged))


def _list(title: str, items: Sequence[str]) -> Document:
    if items:
        yield Line(f"{title}:")
        yield from (Line(f"  {item}") for item in items)
        yield BLANK


_REACHES = {
    DEFAULT: "wrong with default settings",
    UNKNOWN: "wrong, and whether the engine makes such calls is not known",
    FLAG: "wrong with a flag",
    LATENT: "wrong under calls no engine makes today",
}
"""How an engine comes to a fault, the worst first, and the words for it."""


def worst_reach(rows: Iterable[Row]) -> str | None:
    """Return the worst reach of the broken rules among `rows`; None where none is broken."""
    kinds = {reach_kind(row.reach) for row in rows if row.verdict in BROKEN}
    return next((kind for kind in REACHES if kind in kinds), None)


def show_answer(audited: Sequence[AuditedSource], result: GateResult) -> Document:
    """Print a sentence for each source with what is wrong, and what the exit code means."""
    for source in audited:
        yield Heading(answer_of(source))
    yield Line(outcome_of(result))
    yield BLANK


def outcome_of(result: GateResult) -> str:
    """Return the exit code of an audit and what it counts, from the value that decides it."""
    counts = [_counted_findings(result)]
    lost = " not judged as before" if result.base else " not judged"
    counts += [plural(len(result.unjudged), "rule") + lost] if result.unjudged else []
    counts += [plural(len(result.carriers), "class") + " not judged"] if result.carriers else []
    if result.outdated:
        counts.append(f"outdated among the known carriers: {', '.join(result.outdated)}")
    code = ExitCode.HOLDS if result.holds else ExitCode.BROKEN
    return f"exit code {code:d}: {'; '.join(counts)}"


def _counted_findings(result: GateResult) -> str:
    where = {Gate.FLAG: " with default settings or a flag", Gate.DEFAULT: " with default settings"}
    if result.base is None:
        where[Gate.NEW] = " that no catalogue knows"
        return f"{plural(len(result.failing), 'finding')}{where.get(result.gate, '')}"
    classes = plural(len({subject_of(row) for row in result.failing}), "class")
    count = f"{plural(result.causes, 'new fault')} in {classes}" if result.failing else "nothing new"
    left = sum(row.verdict in BROKEN and row not in result.failing for row, _ in result.new)
    others = f", and {left} that {'does' if left == 1 else 'do'} not count" if left else ""
    return f"{count} compared with '{result.base}'{where.get(result.gate, '')}{others}"


def answer_of(source: AuditedSource) -> str:
    """Return one sentence about a source: how many classes are wrong, by how the engine comes there."""
    worst = {verdicts.model_class: worst_reach(verdicts.rows) for verdicts in source.subjects}
    named = {kind: [name for name, reach in worst.items() if reach == kind] for kind in _REACHES}
    parts = []
    if named[DEFAULT]:
        verb = "is" if len(named[DEFAULT]) == 1 else "are"
        classes = "; ".join(_with_issues(source, name) for name in named[DEFAULT])
        parts.append(f"{plural(len(named[DEFAULT]), 'class')} {verb} wrong with default settings ({classes})")
    else:
        parts.append("no class that was judged is wrong with default settings")
    words = {
        UNKNOWN: "in a way that nobody has traced in the engine",
        FLAG: "with a flag",
        LATENT: "could be wrong under calls no engine makes today",
    }
    parts += [f"{len(named[kind])} {text}" for kind, text in words.items() if named[kind]]
    sentences = [", ".join(parts)]
    if unjudged := len(source.account.unjudged):
        known = unjudged - len(source.account.failing)
        count = "all" if known == unjudged else str(known)
        reasons = f", {count} of them known with a reason" if known else ""
        sentences.append(f"{unjudged} not judged{reasons}")
    sentences += [
        f"{plural(failures, 'known failure')} {word}"
        for word, verdict in (
            ("mended", Verdict.IMPROVED),
            ("not put to the test", Verdict.MISSING),
            ("not judged", Verdict.ERROR),
        )
        if (failures := sum(len(verdicts.rules({verdict})) for verdicts in source.subjects))
    ]
    return f"{source.label}: {'; '.join(sentences)}"


def _with_issues(source: AuditedSource, name: str) -> str:
    """Return a class with the numbers of the issues of the faults that default settings lead to."""
    rows = [row for verdicts in source.subjects if verdicts.model_class == name for row in verdicts.rows]
    reached = (row.rule for row in rows if row.verdict in BROKEN and reach_kind(row.reach) == DEFAULT)
    issues = {source.references.get((name, rule), "").split(" ")[-1] for rule in reached} - {"", UNREPORTED}
    return ", ".join([name, *sorted(issues)])


def show_account(audited: Sequence[AuditedSource], *, places: bool = False) -> Document:
    """Print what carries a payload and was not judged, and how many files were looked at for it.

    Known carriers have a line for each reason, and with `places` a line for each class.
    """
    unknown: list[str] = []
    by_reason: dict[str, list[str]] = {}
    for source in audited:
        for carrier in source.account.unjudged:
            named = f"{carrier.name}, {carrier.where} ({source.label})"
            if not carrier.reason:
                unknown.append(f"  {named}: {carrier.why}")
            elif places:
                by_reason.setdefault(carrier.reason, []).append(named)
            else:
                by_reason.setdefault(f"{source.label}, {carrier.reason}", []).append(carrier.name)
    known = [f"  {reason}: {', '.join(dict.fromkeys(names))}" for reason, names in by_reason.items()]
    for title, lines, style in (("not judged", unknown, "red"), ("not judged, and known", known, "")):
        if lines:
            yield Heading(f"{title}: these carry a payload")
            for line in lines:
                yield Line(line, style)
            yield BLANK
    for source in audited:
        yield from source.account.rows(source.label, source.package)
        if source.account != Account():
            files = {carrier.member for carrier in source.account.unjudged}
            judged = plural(len(source.account.judged), "file")
            yield Line(
                f"{source.label}: {judged} with carriers that were judged, {len(files)} with carriers that "
                f"were not, {len(source.account.without)} that mention a payload and carry none"
            )
            yield BLANK


def _groups(classes: Sequence[ClassVerdicts]) -> dict[str, list[ClassVerdicts]]:
    by_signature: dict[tuple[Row, ...], list[ClassVerdicts]] = {}
    for verdicts in classes:
        by_signature.setdefault(verdicts.signature, []).append(verdicts)
    letters = [chr(ord("A") + index % 26) + str(index // 26 or "") for index in range(len(by_signature))]
    return dict(zip(letters, by_signature.values(), strict=True))


def _by_source(members: Sequence[ClassVerdicts]) -> list[str]:
    classes: dict[str, list[str]] = {}
    for member in members:
        classes.setdefault(member.source, []).append(member.model_class)
    return [f"{source}: {', '.join(names)}" for source, names in classes.items()]


def show_gate(result: GateResult) -> Document:
    """Print which findings turn the exit code to 1."""
    yield Line(_counted_findings(result))
    for row in result.failing:
        yield Line(f"  {row.rule} {subject_of(row)} {row.where or ''}: {row.detail}", "red")
    yield BLANK


def show_summary(audited: Sequence[AuditedSource], result: GateResult) -> Document:
    """Print the last line: rules reached by default and their issues, what users notice, the exit code."""
    references = {key: text for source in audited for key, text in source.references.items()}
    rows = [row for source in audited for verdicts in source.subjects for row in verdicts.rows]
    broken = [row for row in rows if row.verdict in BROKEN]
    reached = [row for row in broken if row.reach == DEFAULT]
    effects = sorted({str(row.effect) for row in reached if row.effect is not None})
    by_default = [_rules(reached, references)]
    # "none" is printed only where everything that carries a payload was judged.
    if unjudged := sum(len(source.account.unjudged) for source in audited):
        by_default = [*(by_default if reached else ()), f"unknown for {plural(unjudged, 'class')}"]
    parts = [
        f"reached by default: {', '.join(by_default)}",
        f"Not known before: {_rules([row for row in broken if row.verdict is Verdict.FAIL], {})}",
        f"Effect: {', '.join(effects) or ('not measured' if reached else 'none')}",
    ]
    if result.unjudged:
        parts.append(f"Not judged: {_rules(result.unjudged, {})}")
    yield outcome(f"{'. '.join(parts)}. {outcome_of(result).capitalize()}.", good=result.holds)


def show_change(
    audited: Sequence[AuditedSource], result: GateResult, findings: Sequence[ReportedRow]
) -> Document:
    """Print what a change does: what is new, what is mended, and a count of what stays."""
    yield Heading(outcome_of(result))
    judged = sum(len(source.classes) for source in audited)
    others = sum(len(source.members) for source in audited) - judged
    beside = f"; {others} that it does not reach, or that cannot be judged" if others > 0 else ""
    yield Line(f"{plural(judged, 'class')} judged that the change reaches{beside}")
    yield BLANK
    for finding in findings:
        if not finding.in_base:
            yield from _show_finding(finding)
    mended = sorted({f"{row.rule} {row.rule.word} of {subject_of(row)}" for row in result.mended})
    if mended:
        yield Line(f"mended: {'; '.join(mended)}", "green")
    if result.stay:
        yield Line(
            f"{plural(result.stay, 'finding')} that '{result.base}' has too: audit without --base shows them"
        )
    if mended or result.stay:
        yield BLANK
    for source in audited:
        yield from (row for verdicts in source.subjects for row in verdicts.rows)
        yield from source.account.rows(source.label, source.package)
    yield outcome(outcome_of(result), good=result.holds)


def _show_finding(finding: ReportedRow) -> Document:
    head = ", ".join(filter(None, [finding.title, finding.where]))
    yield Line(head, "red" if finding.fails else "yellow")
    others = f"; also {', '.join(finding.others)}, from there" if finding.others else ""
    yield Line(f"  {finding.subject}{others}")
    yield Line(f"  {finding.text}")
    if finding.new:
        yield Line(f"  new: {finding.new}")
    if finding.detail:
        yield Line(f"  {finding.detail}")
    if finding.reference:
        yield Line(f"  {finding.reference}")
    yield BLANK


def _rules(rows: Iterable[Row], references: dict[tuple[str, Rule], str]) -> str:
    """Return the rules in order, each with the numbers of the issues that wait for it."""
    issues: dict[Rule, set[str]] = {}
    for row in rows:
        reference = references.get((row.model_class or row.revision, row.rule), "")
        issues.setdefault(row.rule, set()).update(reference.split()[-1:])
    named = (
        f"{rule} ({', '.join(sorted(issues[rule]))})" if issues[rule] else str(rule)
        for rule in Rule
        if rule in issues
    )
    return ", ".join(named) or "none"


NOT_READ = "the engine has nothing that is read and judged by it"
_LEGEND = "K kept, B broken, Bc broken only under graphs, - does not apply, ? not judged"


def show_engine_rules(audited: Sequence[AuditedSource]) -> Document:
    """Print the table where sources of two packages were audited, and why a rule does not apply."""
    if len({source.package for source in audited}) < 2:
        return
    rows = {
        source.label: [row for verdicts in source.subjects for row in verdicts.rows] for source in audited
    }
    asked = {row.rule for of_source in rows.values() for row in of_source}
    rules = [rule for rule in Rule if rule in asked]
    yield Heading(f"engine and rule ({_LEGEND})")
    lines = [
        ([label, *(cell_of(row for row in of_source if row.rule is rule) for rule in rules)], "")
        for label, of_source in rows.items()
    ]
    yield TextTable([Column("source"), *(Column(str(rule)) for rule in rules)], lines)
    for (label, reason), without in _reasons(rows, rules).items():
        yield Line(f"    - {names_of(without)} ({label}): {reason}")
    yield BLANK


def cell_of(rows: Iterable[Row]) -> str:
    """Return the cell of a rule from its rows in all classes and regimes."""
    rows = list(rows)
    verdicts = {row.verdict for row in rows}
    if broken := [row for row in rows if row.verdict in BROKEN]:
        return "Bc" if all(row.regime is Regime.CAPTURED for row in broken) else "B"
    if Verdict.ERROR in verdicts:
        return "?"
    return "K" if verdicts & set(KEPT) else "-"


def _reasons(rows: Mapping[str, Sequence[Row]], rules: Sequence[Rule]) -> dict[tuple[str, str], set[Rule]]:
    """Return the rules that do not apply, by the sources that share a reason and the reason."""
    sources: dict[tuple[Rule, str], list[str]] = {}
    for label, of_source in rows.items():
        for rule in rules:
            of_rule = [row for row in of_source if row.rule is rule]
            if cell_of(of_rule) == "-":
                reason = next((row.detail for row in of_rule), NOT_READ)
                sources.setdefault((rule, reason), []).append(label)
    reasons: dict[tuple[str, str], set[Rule]] = {}
    for (rule, reason), labels in sources.items():
        reasons.setdefault((", ".join(labels), reason), set()).add(rule)
    return reasons
