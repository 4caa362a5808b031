"""A run while it runs: a line for each group as it ends, what is unexpected at once, a summary at the end."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from deepstack_harness.contract.rules import Verdict
from deepstack_harness.reporting.terminal.output import Column, Output
from deepstack_harness.reporting.verdict_words import UNEXPECTED, WORST_FIRST
from deepstack_harness.results.records import CaseRecord, RunRow
from deepstack_harness.runs.task_result import Done
from deepstack_harness.runs.tasks import Group

_HEADINGS = ("group", "cases", "seconds", "judgements")
_LONGEST = 200


class LiveTable:
    """Is told of every task that ends."""

    def __init__(self, output: Output, groups: Sequence[Group], say: Callable[[str], None]) -> None:
        """`groups` are those that are left to play; `say` shows what goes on, on a terminal."""
        self._output = output
        self._say = say
        self._left = {group.name: len(group.tasks) for group in groups}
        self._ended: dict[str, list[Done]] = {group.name: [] for group in groups}
        self._columns = [
            Column(max(map(len, (*self._left, _HEADINGS[0])))), Column(5, right=True), Column(8, right=True),
            Column(0),
        ]  # fmt: skip
        if groups:
            output.row(self._columns, _HEADINGS, "dim")

    def add(self, done: Done) -> None:
        """One task; the last one of a group prints its line."""
        name = done.case.group
        self._ended[name].append(done)
        self._left[name] -= 1
        self._say(f"{sum(self._left.values())} cases left, the last one was {name}")
        for row in done.rows:
            self._output.record(row)
        if not self._left[name]:
            self._group(name, self._ended.pop(name))

    def _group(self, name: str, ended: Sequence[Done]) -> None:
        rows = [row for done in ended for row in done.rows]
        seconds = sum(done.case.seconds for done in ended)
        bad = [row for row in rows if row.verdict in UNEXPECTED]
        cells = [name, str(len(ended)), f"{seconds:.1f}", counted(rows)]
        self._output.row(self._columns, cells, "red" if bad else "")
        for line in unexpected(ended):
            self._output.line(f"  {line}"[:_LONGEST])


def unexpected(ended: Iterable[Done]) -> list[str]:
    """A line for each judgement that is; one for a case that did not come to its end."""
    lines = []
    for done in ended:
        case, bad = done.case, [row for row in done.rows if row.verdict in UNEXPECTED]
        where = f"{case.subject} {case.dtype} '{case.trace}'"
        if bad and {row.verdict for row in done.rows} == {Verdict.ERROR}:
            lines.append(f"ERROR {where}: {bad[0].detail}")
        else:
            lines += [f"{row.verdict} {row.rule} {where}: {row.detail}" for row in bad]
    return lines


def counted(rows: Iterable[RunRow]) -> str:
    """`3 FAIL, 120 PASS`: the worst first, without those that do not apply."""
    counts = Counter(row.verdict for row in rows)
    shown = [verdict for verdict in WORST_FIRST if counts[verdict] and verdict is not Verdict.SKIP]
    return ", ".join(f"{counts[verdict]} {verdict}" for verdict in shown) or "nothing to judge"


def close(output: Output, rows: Sequence[RunRow], cases: Sequence[CaseRecord], folder: str) -> bool:
    """The closing line; answers whether everything is as expected."""
    good = not any(row.verdict in UNEXPECTED for row in rows)
    lost = sum(not case.steps for case in cases)
    note = f"; {lost} did not come to their end" if lost else ""
    output.line()
    output.verdict(f"{len(cases)} cases{note}: {counted(rows)}; see {folder}", good=good)
    return good
