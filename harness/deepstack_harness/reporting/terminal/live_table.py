"""A run in progress: a line for each group that ended, and a summary at the end."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from deepstack_harness.contract.plural import plural
from deepstack_harness.contract.row import Row
from deepstack_harness.contract.verdicts import UNEXPECTED, WORST_FIRST, Verdict
from deepstack_harness.reporting.terminal.output import Column, Output
from deepstack_harness.results.case_result import CaseResult
from deepstack_harness.results.records import CaseRecord
from deepstack_harness.runs.groups import Group

_HEADINGS = ("group", "cases", "seconds", "judgements")
_LONGEST = 200


class LiveTable:
    """A table that grows with every case that ends."""

    def __init__(self, output: Output, groups: Sequence[Group], say: Callable[[str], None]) -> None:
        """Print the head; `groups` are left to play, `say` shows the progress on a terminal."""
        self._output = output
        self._say = say
        self._left = {group.name: len(group.cases) for group in groups}
        self._ended: dict[str, list[CaseResult]] = {group.name: [] for group in groups}
        self._columns = [
            Column(max(map(len, (*self._left, _HEADINGS[0])))), Column(5, right=True), Column(8, right=True),
            Column(0),
        ]  # fmt: skip
        if groups:
            output.row(self._columns, _HEADINGS, "dim")

    def add(self, result: CaseResult) -> None:
        """Count one case; the last case of a group prints its line."""
        name = result.case.group
        self._ended[name].append(result)
        self._left[name] -= 1
        self._say(f"{plural(sum(self._left.values()), 'case')} left, the last one was {name}")
        for row in result.rows:
            self._output.record(row)
        if not self._left[name]:
            self._group(name, self._ended.pop(name))

    def _group(self, name: str, ended: Sequence[CaseResult]) -> None:
        rows = [row for result in ended for row in result.rows]
        seconds = sum(result.case.seconds for result in ended)
        bad = [row for row in rows if row.verdict in UNEXPECTED]
        cells = [name, str(len(ended)), f"{seconds:.1f}", counted(rows)]
        self._output.row(self._columns, cells, "red" if bad else "")
        for line in unexpected(ended):
            self._output.line(f"  {line}"[:_LONGEST])


def unexpected(ended: Iterable[CaseResult]) -> list[str]:
    """Return a line for each unexpected judgement; one line for a case that did not come to its end."""
    lines = []
    for result in ended:
        case, bad = result.case, [row for row in result.rows if row.verdict in UNEXPECTED]
        where = f"{case.subject} {case.dtype} '{case.trace}'"
        if bad and {row.verdict for row in result.rows} == {Verdict.ERROR}:
            lines.append(f"ERROR {where}: {bad[0].detail}")
        else:
            lines += [f"{row.verdict} {row.rule} {where}: {row.detail}" for row in bad]
    return lines


def counted(rows: Iterable[Row]) -> str:
    """Return `3 FAIL, 120 PASS`: the worst first, without SKIP."""
    counts = Counter(row.verdict for row in rows)
    shown = [verdict for verdict in WORST_FIRST if counts[verdict] and verdict is not Verdict.SKIP]
    return ", ".join(f"{counts[verdict]} {verdict}" for verdict in shown) or "nothing to judge"


def close(output: Output, rows: Sequence[Row], cases: Sequence[CaseRecord], folder: str) -> bool:
    """Print the closing line; return whether everything is as expected."""
    good = not any(row.verdict in UNEXPECTED for row in rows)
    lost = sum(not case.steps for case in cases)
    note = f"; {lost} did not come to their end" if lost else ""
    output.line()
    output.verdict(f"{plural(len(cases), 'case')}{note}: {counted(rows)}; see {folder}", good=good)
    return good
