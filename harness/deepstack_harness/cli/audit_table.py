"""What `audit` prints: the answer, the findings, what was not judged, and the tables of rules.

Classes that stand alike are folded into groups.  Several engines are shown in one table, a line for
each source and a column for each rule.  Systems that play no trace have a line for each subject and
rule, here and in `repro`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from deepstack_harness.audit.account import Account
from deepstack_harness.audit.audited_source import AuditedSource, Gate, GateResult
from deepstack_harness.audit.standing import WHO_IS_CAPTURED, Finding, Standing
from deepstack_harness.audit.systems import SourceSystems
from deepstack_harness.catalogue.orders import DEFAULT, FLAG, LATENT, UNKNOWN
from deepstack_harness.cli.output import Column, Output
from deepstack_harness.cli.repro_table import show_incident
from deepstack_harness.contract.case import Regime
from deepstack_harness.contract.rules import Rule, names_of
from deepstack_harness.contract.verdicts import BROKEN, KEPT, Row, Verdict
from deepstack_harness.errors import ExitCode, Reason
from deepstack_harness.sources.source import inside_package
from deepstack_harness.text import plural

if TYPE_CHECKING:
    from deepstack_harness.audit.systems import JudgedSubject
    from deepstack_harness.catalogue.incidents import Incident


class AuditTable:
    """The table of `audit`: classes that stand alike are folded into one group, named by a letter."""

    def __init__(self, output: Output) -> None:
        """Print nothing yet: all sources have to be judged first, since any two may be alike."""
        self._output = output
        self._refusals: dict[tuple[str, str], list[str]] = {}
        self._places: dict[tuple[str, str], str] = {}

    def refuse(self, label: str, model_class: str, reason: Reason) -> None:
        """Note a class that could not be driven, and why; the place is that in the first source."""
        key = (model_class, reason.text)
        self._refusals.setdefault(key, []).append(label)
        if reason.where:
            self._places.setdefault(key, reason.where)

    def show_findings(self, standings: Sequence[Standing], *, latent: bool = False) -> None:
        """Print every finding, the worst reach first; those of no engine's calls are counted, or `latent`."""
        groups = _groups(standings)
        for kind, title in _REACHES.items():
            findings = {letter: _findings_of(members[0], kind) for letter, members in groups.items()}
            if kind == LATENT and not latent:
                self._count_latent(groups, findings)
            elif any(findings.values()):
                self._output.line(title, "bold")
                for letter, found in findings.items():
                    self._findings(letter, groups[letter], found)

    def show(self, standings: Sequence[Standing]) -> None:
        """Print the groups, what their members share, sources that differ, and what was not driven."""
        groups = _groups(standings)
        if groups:
            self._overview(groups)
        self._differences(groups)
        self._list("not driven", [self._refusal(*key) for key in self._refusals])
        for standing in standings:
            for row in standing.rows:
                self._output.record(row)

    def close(self, standings: Sequence[Standing]) -> None:
        """Print the unexpected rules, and the closing line with all broken ones."""
        broken = {rule for standing in standings for rule in standing.broken}
        self._rules("broken and not known before", [(each, each.new) for each in standings])
        self._rules("known to break, and kept now", [(each, each.improved) for each in standings])
        self._rules("known to break, and not put to the test", [(each, each.missing) for each in standings])
        if any(each.broken_in(Regime.CAPTURED) for each in standings):
            self._output.line(f"captured: {WHO_IS_CAPTURED}")
        unjudged = {rule for standing in standings for rule in standing.unjudged}
        self._list("not judged", [_not_judged(one) for one in standings if one.unjudged])
        text = f"{len(standings)} classes and helpers judged, rules broken: {names_of(broken)}"
        if unjudged:
            text += f", not judged: {names_of(unjudged)}"
        self._output.verdict(text, good=not (broken or unjudged))

    def _refusal(self, name: str, why: str) -> str:
        place = self._places.get((name, why))
        at = f", at {place}" if place else ""
        return f"{name} ({', '.join(self._refusals[name, why])}): {why}{at}"

    def _overview(self, groups: dict[str, list[Standing]]) -> None:
        heads = ("broken live", "broken captured", "kept")
        rules = {letter: _rules_of(members[0]) for letter, members in groups.items()}
        widths = [max(map(len, column)) for column in zip(heads, *rules.values(), strict=True)]
        columns = [Column(5), *map(Column, widths), Column(0)]
        self._output.row(columns, ["group", *heads, "classes"], "dim")
        for letter, members in groups.items():
            first, *others = _by_source(members)
            self._output.row(columns, [letter, *rules[letter], first])
            for other in others:
                self._output.row(columns, ["", "", "", "", other])
        self._output.line()

    def _differences(self, groups: dict[str, list[Standing]]) -> None:
        letters: dict[str, set[str]] = {}
        for letter, members in groups.items():
            for member in members:
                letters.setdefault(member.source, set()).add(letter)
        apart = [
            f"{source}: groups {', '.join(sorted(found))}"
            for source, found in letters.items()
            if len(found) > 1
        ]
        self._list("sources whose classes differ from each other", apart)

    def _count_latent(
        self, groups: Mapping[str, Sequence[Standing]], findings: Mapping[str, Sequence[Finding]]
    ) -> None:
        classes = sum(len(groups[letter]) for letter, found in findings.items() if found)
        if classes:
            count = sum(len(groups[letter]) * len(found) for letter, found in findings.items())
            seen = f"{plural(count, 'finding')} in {plural(classes, 'class')}"
            self._output.line(f"{seen} under calls no engine makes today: --all shows them")
            self._output.line()

    def _findings(self, letter: str, members: Sequence[Standing], findings: Sequence[Finding]) -> None:
        if not findings:
            return
        self._output.line(f"group {letter}, {'; '.join(_by_source(members))}")
        columns = [Column(2), Column(7), Column(8), Column(8), Column(12), Column(0)]
        for row, also in findings:
            cells = ["", row.rule, row.regime, figure_of(row), row.reach or "", _words(row)]
            self._output.row(columns, cells)
            for effect in also:
                cells = ["", f"also {effect.rule}", effect.regime, figure_of(effect), effect.reach or ""]
                self._output.row(columns, [*cells, f"'{effect.trace}'"])
        self._output.line()

    def _rules(self, title: str, found: Iterable[tuple[Standing, Collection[Rule]]]) -> None:
        self._list(
            title, [f"{one.source} {one.model_class} {names_of(rules)}" for one, rules in found if rules]
        )

    def _list(self, title: str, items: Sequence[str]) -> None:
        if items:
            self._output.line(f"{title}:")
            for item in items:
                self._output.line(f"  {item}")
            self._output.line()


_REACHES = {
    DEFAULT: "wrong with default settings",
    UNKNOWN: "wrong, and nobody has read how the engine comes there",
    FLAG: "wrong with a flag",
    LATENT: "wrong under calls no engine makes today",
}
"""How an engine comes to a fault, the worst first, and the words for it."""


def _kind_of(reach: str | None) -> str:
    """Return the key of `_REACHES` for the reach of a broken rule."""
    if reach is not None and reach.startswith(FLAG):
        return FLAG
    return reach if reach in (DEFAULT, LATENT) else UNKNOWN


def _worst(rows: Iterable[Row]) -> str | None:
    """Return the worst reach of the broken rules among `rows`; None where none is broken."""
    kinds = {_kind_of(row.reach) for row in rows if row.verdict in BROKEN}
    return next((kind for kind in _REACHES if kind in kinds), None)


def _findings_of(standing: Standing, kind: str) -> list[Finding]:
    """Return the findings with a reach, of a rule itself or of what follows from it."""
    return [(row, also) for row, also in standing.findings if _worst((row, *also)) == kind]


def show_answer(
    output: Output, audited: Sequence[AuditedSource], result: GateResult, base: str | None
) -> None:
    """Print a sentence for each source that says what is wrong, and what the exit code stands for."""
    for one in audited:
        output.line(answer_of(one), "bold")
    beside = f", where '{base}' does not have them" if base is not None else ""
    counts = [plural(len(result.failing), "finding")]
    counts += [plural(len(result.unjudged), "rule") + " not judged"] if result.unjudged else []
    counts += [plural(len(result.carriers), "class") + " not judged"] if result.carriers else []
    if result.outdated:
        counts.append(f"outdated among the known carriers: {', '.join(result.outdated)}")
    code = ExitCode.HOLDS if result.holds else ExitCode.BROKEN
    output.line(f"exit code {code:d}: {_COUNTED[result.gate]}{beside}: {'; '.join(counts)}")
    output.line()


def answer_of(one: AuditedSource) -> str:
    """Return one sentence about a source: how many classes are wrong, by how the engine comes there."""
    worst = {standing.model_class: _worst(standing.rows) for standing in one.standings}
    named = {kind: [name for name, each in worst.items() if each == kind] for kind in _REACHES}
    parts = []
    if named[DEFAULT]:
        verb = "is" if len(named[DEFAULT]) == 1 else "are"
        classes = "; ".join(_with_issues(one, name) for name in named[DEFAULT])
        parts.append(f"{plural(len(named[DEFAULT]), 'class')} {verb} wrong with default settings ({classes})")
    else:
        parts.append("no class that was judged is wrong with default settings")
    words = {
        UNKNOWN: "in a way that nobody has traced in the engine",
        FLAG: "with a flag",
        LATENT: "could be wrong under calls no engine makes today",
    }
    parts += [f"{len(named[kind])} {text}" for kind, text in words.items() if named[kind]]
    told = [", ".join(parts)]
    if one.account.unjudged:
        known = len(one.account.unjudged) - len(one.account.failing)
        some = "all" if known == len(one.account.unjudged) else str(known)
        told.append(
            f"{len(one.account.unjudged)} not judged"
            + (f", {some} of them known with a reason" if known else "")
        )
    told += [
        f"{plural(count, 'known failure')} {word}"
        for word, count in (
            ("mended", sum(len(standing.improved) for standing in one.standings)),
            ("not put to the test", sum(len(standing.missing) for standing in one.standings)),
            ("not judged", sum(len(standing.unjudged) for standing in one.standings)),
        )
        if count
    ]
    return f"{one.label}: {'; '.join(told)}"


def _with_issues(one: AuditedSource, name: str) -> str:
    """Return a class with the numbers of the issues of the faults that default settings lead to."""
    rows = [row for standing in one.standings if standing.model_class == name for row in standing.rows]
    reached = (row.rule for row in rows if row.verdict in BROKEN and _kind_of(row.reach) == DEFAULT)
    issues = {one.references.get((name, rule), "").split(" ")[-1] for rule in reached} - {"", "unreported"}
    return ", ".join([name, *sorted(issues)])


def show_account(output: Output, audited: Sequence[AuditedSource], *, places: bool = False) -> None:
    """Print what carries a payload and was not judged, and how many files were looked at for it.

    What is known has one line for each reason, and with `places` one for each class.
    """
    unknown: list[str] = []
    by_reason: dict[str, list[str]] = {}
    for one in audited:
        for carrier in one.account.unjudged:
            named = f"{carrier.name}, {carrier.where} ({one.label})"
            if not carrier.reason:
                unknown.append(f"  {named}: {carrier.why}")
            elif places:
                by_reason.setdefault(carrier.reason, []).append(named)
            else:
                by_reason.setdefault(f"{one.label}, {carrier.reason}", []).append(carrier.name)
    known = [f"  {reason}: {', '.join(dict.fromkeys(names))}" for reason, names in by_reason.items()]
    for title, lines, style in (("not judged", unknown, "red"), ("not judged, and known", known, "")):
        if lines:
            output.line(f"{title}: these carry a payload", "bold")
            for line in lines:
                output.line(line, style)
            output.line()
    for one in audited:
        for row in one.account.rows(one.label, one.package):
            output.record(row)
        if one.account != Account():
            files = {carrier.member for carrier in one.account.unjudged}
            judged = plural(len(one.account.judged), "file")
            output.line(
                f"{one.label}: {judged} with carriers that were judged, {len(files)} with others, "
                f"{len(one.account.without)} that have the word and carry nothing"
            )
            output.line()


def _groups(standings: Sequence[Standing]) -> dict[str, list[Standing]]:
    alike: dict[tuple[Row, ...], list[Standing]] = {}
    for standing in standings:
        alike.setdefault(standing.signature, []).append(standing)
    return {_letter(index): members for index, members in enumerate(alike.values())}


def _rules_of(standing: Standing) -> tuple[str, str, str]:
    """Return the rules broken in live use, those broken in captured use, and those that are kept."""
    captured = standing.broken_in(Regime.CAPTURED)
    # What plays no trace has no regime, and is broken in any use.
    live = standing.broken_in(Regime.LIVE) | standing.broken_in(Regime.NONE)
    return names_of(live), names_of(captured), names_of(standing.kept)


def _letter(index: int) -> str:
    letter = chr(ord("A") + index % 26)
    return letter if index < 26 else f"{letter}{index // 26}"


def _by_source(members: Sequence[Standing]) -> list[str]:
    classes: dict[str, list[str]] = {}
    for member in members:
        classes.setdefault(member.source, []).append(member.model_class)
    return [f"{source}: {', '.join(names)}" for source, names in classes.items()]


def figure_of(row: Row) -> str:
    """Return the figure of a broken rule with its unit; an empty text for other rules."""
    if row.value is None or row.verdict not in BROKEN:
        return ""
    unit = row.unit.removesuffix("s") if row.value == 1 else row.unit
    return f"{row.value:g} {unit}"


def _not_judged(standing: Standing) -> str:
    reasons = [row.detail for row in standing.rows if row.rule in standing.unjudged]
    names = f"{standing.source} {standing.model_class} {names_of(standing.unjudged)}"
    return f"{names}: {'; '.join(dict.fromkeys(reasons))}"


def _words(row: Row) -> str:
    return f"'{row.trace}': {row.detail}" if row.verdict in BROKEN else row.detail


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
        f"reached by default: {_reached_by_default(audited, reached, references)}",
        f"New: {_rules(new, {})}",
        f"Effect: {', '.join(effects) or ('not measured' if reached else 'none')}",
    ]
    if result.unjudged:
        parts.append(f"Not judged: {_rules(result.unjudged, {})}")
    output.verdict(f"{'. '.join(parts)}.", good=result.holds)


def _reached_by_default(
    audited: Sequence[AuditedSource], reached: Sequence[Row], references: dict[tuple[str, Rule], str]
) -> str:
    """Return the rules; "none" is said only where everything that carries a payload was judged."""
    unjudged = sum(len(one.account.unjudged) for one in audited)
    if not unjudged:
        return _rules(reached, references)
    unknown = f"unknown for {plural(unjudged, 'class')}"
    return f"{_rules(reached, references)}, {unknown}" if reached else unknown


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


_HEADINGS = ("subject", "rule", "verdict", "figure", "seen")


def show_judged(output: Output, judged: JudgedSubject, width: int, indent: int = 0) -> None:
    """Print for each rule its verdict, its figure and what was seen, and under them further measurements."""
    columns = _columns(width + indent)
    for row in judged.rows:
        first, *more = list(filter(None, [row.detail, judged.figures])) or [""]
        cells = [" " * indent + judged.subject, row.rule, row.verdict.word, figure_of(row), first]
        output.row(columns, cells, row.verdict.style)
        for words in more:
            output.row(columns, ["", "", "", "", words])
    for record in judged.records:
        output.record(record)


class SystemTable:
    """Table of subjects, printed as they are judged; `output` decides what is seen."""

    def __init__(self, output: Output, incident: Incident, width: int) -> None:
        """Print what is about to be shown; `width` is that of the longest subject."""
        self._output = output
        self._incident = incident
        self._width = max(width, len(_HEADINGS[0]))
        show_incident(output, incident)
        output.line()
        output.row(_columns(self._width), _HEADINGS, "dim")

    def add(self, judged: JudgedSubject) -> None:
        """Print the next subject."""
        show_judged(self._output, judged, self._width)

    def close(self, found: Sequence[JudgedSubject]) -> None:
        """Print whether our variants are as the catalogue has them, and which are not."""
        wrong = [one for one in found if not one.as_expected]
        self._output.line()
        for one in wrong:
            wanted = names_of(one.must_break or ())
            self._output.line(f"not as expected: {one.subject} broke {_seen(one)}, expected {wanted}")
        if wrong:
            self._output.verdict(f"not as the catalogue expects: {plural(len(wrong), 'subject')}", good=False)
            return
        rules, faulty, fixed = self._incident.rules, self._incident.faulty, self._incident.fixed
        said = f"shown: rule {names_of(rules)} broken by {', '.join(faulty)}, kept by {', '.join(fixed)}"
        self._output.verdict(said, good=True)

    def close_source(self, label: str, module: str, found: Sequence[JudgedSubject]) -> None:
        """Print whether a source has the fault, and where (file inside its top-level `module`, and line)."""
        wrong = [one for one in found if one.broken or one.unjudged]
        self._output.line()
        for one in wrong:
            self._output.line(f"where: {inside_package(one.where, module)}")
        for one in wrong:
            has = "HAS" if one.broken else "may have"
            said = f"{label}, {one.subject}: {has} incident {self._incident.id}, breaks {_seen(one)}"
            self._output.verdict(said, good=False)
        if not wrong:
            subjects = ", ".join(one.subject for one in found)
            self._output.verdict(f"{label}, {subjects}: free of incident {self._incident.id}", good=True)


def _seen(one: JudgedSubject) -> str:
    return names_of(one.broken) + (f", unjudged {names_of(one.unjudged)}" if one.unjudged else "")


def _columns(width: int) -> list[Column]:
    return [Column(width), Column(4), Column(10), Column(17), Column(0)]


def show_beside(output: Output, found: Sequence[SourceSystems]) -> None:
    """Print a line for each subject of each source, and a sentence where a source lacks one.

    Sources of engines that have none of these systems are left out.
    """
    found = [each for each in found if each.judged or each.refusals]
    if not found:
        return
    output.line("beside the buffer", "bold")
    width = max((len(one.subject) for each in found for one in each.judged), default=0)
    for each in found:
        output.line(each.label)
        for one in each.judged:
            show_judged(output, one, width, indent=2)
        for sentence in each.refusals:
            output.line(f"  not judged: {sentence}")
    output.line()
