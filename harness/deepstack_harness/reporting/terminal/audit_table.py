"""The table of `audit`: rules broken and kept in both regimes, with figures, traces and reach."""

from collections.abc import Collection, Iterable, Sequence

from deepstack_harness.auditing.regimes import WHO_IS_CAPTURED
from deepstack_harness.auditing.standing import Standing
from deepstack_harness.contract.case import Regime
from deepstack_harness.contract.row import Row
from deepstack_harness.contract.rules import Rule, names_of
from deepstack_harness.contract.verdicts import BROKEN
from deepstack_harness.reporting.terminal.output import Column, Output


class AuditTable:
    """The table of `audit`: classes that stand alike are folded into one group, named by a letter."""

    def __init__(self, output: Output) -> None:
        """Print nothing yet: all sources have to be judged first, since any two may be alike."""
        self._output = output
        self._refusals: dict[tuple[str, str], list[str]] = {}
        self._places: dict[tuple[str, str], str] = {}

    def refuse(self, label: str, model_class: str, why: str) -> None:
        """Note a class that could not be driven, and why; the place in front is told of the first source."""
        place, _, reason = why.partition(": ")
        key = (model_class, reason or place)
        self._refusals.setdefault(key, []).append(label)
        if reason:
            self._places.setdefault(key, place)

    def show(self, standings: Sequence[Standing]) -> None:
        """Print the groups, what their members share, sources that differ, and every finding."""
        groups = _groups(standings)
        self._overview(groups)
        self._differences(groups)
        for letter, members in groups.items():
            self._findings(letter, members)
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

    def _findings(self, letter: str, members: Sequence[Standing]) -> None:
        findings = members[0].findings
        if not findings:
            return
        self._output.line(f"group {letter}, as seen in {members[0].source}, {members[0].model_class}", "bold")
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
