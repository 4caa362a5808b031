"""What `check` and `audit` show: rules broken and kept, with figures, traces and reach."""

from collections.abc import Iterable, Sequence

from deepstack_harness.auditing.standing import Standing
from deepstack_harness.contract.row import Row
from deepstack_harness.contract.rules import BROKEN, Rule, Verdict
from deepstack_harness.reporting.terminal.output import Column, Output

STYLES = {Verdict.FAIL: "red", Verdict.XFAIL: "red", Verdict.ERROR: "yellow", Verdict.SKIP: "dim"}
WORDS = {
    Verdict.FAIL: "broken",
    Verdict.XFAIL: "broken",
    Verdict.ERROR: "not judged",
    Verdict.PASS: "kept",
    Verdict.IMPROVED: "kept, was known to break",
    Verdict.SKIP: "not tested",
}


def show_standing(output: Output, standing: Standing) -> None:
    """One line per rule; for a broken one the figure, the trace and what was seen."""
    columns = [Column(3), Column(9), Column(10), Column(10), Column(0)]
    for row in standing.rows:
        verdict = Verdict(row.verdict)
        cells = [row.rule, Rule(row.rule).word, WORDS[verdict], figure_of(row), _words(row)]
        output.row(columns, cells, STYLES.get(verdict, ""))


class AuditTable:
    """Columns that are alike are folded into one group, named by a letter."""

    def __init__(self, output: Output) -> None:
        """Nothing is printed before all sources are judged, since any two may be alike."""
        self._output = output
        self._refusals: dict[tuple[str, str], list[str]] = {}

    def refuse(self, label: str, model_class: str, why: str) -> None:
        """A class that could not be driven, and why."""
        place, _, reason = why.partition(": ")
        self._refusals.setdefault((model_class, reason or place), []).append(label)

    def show(self, standings: Sequence[Standing]) -> None:
        """The groups, what their members share, who stands apart, and every finding."""
        groups = _groups(standings)
        self._overview(groups)
        self._differences(groups)
        for letter, members in groups.items():
            self._findings(letter, members)
        refusals = [f"{name} ({', '.join(labels)}): {why}" for (name, why), labels in self._refusals.items()]
        self._list("not driven", refusals)
        for standing in standings:
            for row in standing.rows:
                self._output.record(row)

    def close(self, standings: Sequence[Standing]) -> None:
        """The last line: what is broken, and what of it is not known yet."""
        broken = {rule for one in standings for rule in one.broken}
        unknown = [f"{one.source} {one.model_class} {names_of(new)}" for one in standings if (new := one.new)]
        improved = [
            f"{one.source} {one.model_class} {names_of(less)}" for one in standings if (less := one.improved)
        ]
        self._list("broken and not known before", unknown)
        self._list("known to break, and kept now", improved)
        text = f"{len(standings)} classes and helpers judged, rules broken: {names_of(broken)}"
        self._output.verdict(text, good=not broken)

    def _overview(self, groups: dict[str, list[Standing]]) -> None:
        broken = [Column(max([6, *(len(names_of(members[0].broken)) for members in groups.values())]))]
        kept = [Column(max([4, *(len(names_of(members[0].kept)) for members in groups.values())]))]
        columns = [Column(5), *broken, *kept, Column(0)]
        self._output.row(columns, ["group", "broken", "kept", "classes"], "dim")
        for letter, members in groups.items():
            first, *others = _by_source(members)
            self._output.row(columns, [letter, names_of(members[0].broken), names_of(members[0].kept), first])
            for other in others:
                self._output.row(columns, ["", "", "", other])
        self._output.line()

    def _differences(self, groups: dict[str, list[Standing]]) -> None:
        letters: dict[str, set[str]] = {}
        for letter, members in groups.items():
            for one in members:
                letters.setdefault(one.source, set()).add(letter)
        apart = [
            f"{source}: groups {', '.join(sorted(found))}"
            for source, found in letters.items()
            if len(found) > 1
        ]
        self._list("sources whose classes differ from each other", apart)

    def _findings(self, letter: str, members: Sequence[Standing]) -> None:
        rows = [row for row in members[0].rows if row.verdict in BROKEN]
        if not rows:
            return
        self._output.line(f"group {letter}, as seen in {members[0].source}, {members[0].model_class}", "bold")
        columns = [Column(2), Column(3), Column(8), Column(12), Column(0)]
        for row in rows:
            self._output.row(columns, ["", row.rule, figure_of(row), row.reach or "", _words(row)])
        self._output.line()

    def _list(self, title: str, items: Sequence[str]) -> None:
        if items:
            self._output.line(f"{title}:")
            for item in items:
                self._output.line(f"  {item}")
            self._output.line()


def _groups(standings: Sequence[Standing]) -> dict[str, list[Standing]]:
    alike: dict[tuple[Row, ...], list[Standing]] = {}
    for one in standings:
        alike.setdefault(one.signature, []).append(one)
    return {_letter(index): members for index, members in enumerate(alike.values())}


def _letter(index: int) -> str:
    letter = chr(ord("A") + index % 26)
    return letter if index < 26 else f"{letter}{index // 26}"


def _by_source(members: Sequence[Standing]) -> list[str]:
    classes: dict[str, list[str]] = {}
    for one in members:
        classes.setdefault(one.source, []).append(one.model_class)
    return [f"{source}: {', '.join(names)}" for source, names in classes.items()]


def figure_of(row: Row) -> str:
    """The figure of a broken rule with its unit; nothing for one that is kept."""
    if row.value is None or row.verdict not in BROKEN:
        return ""
    unit = row.unit.removesuffix("s") if row.value == 1 else row.unit
    return f"{row.value:g} {unit}"


def names_of(rules: Iterable[Rule]) -> str:
    """Rules in their order, `none` for none."""
    wanted = set(rules)
    return " ".join(rule for rule in Rule if rule in wanted) or "none"


def _words(row: Row) -> str:
    return f"'{row.trace}': {row.detail}" if row.verdict in BROKEN else row.detail
