"""What does another torch change? One table over runs of the same cases, each in an environment of its own.

First the changes by cause (`deepstack_harness.runs.causes`), each version against the one before it; then
what was measured, arm by arm, over the cases that all of the runs have. Times are ratios to the first run:
seconds of one machine cannot be compared with those of another one.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from deepstack_harness.contract.observation import NOT_FINITE
from deepstack_harness.contract.verdicts import BROKEN, KEPT, Row, Verdict
from deepstack_harness.runs.causes import ChangeCause, findings
from deepstack_harness.runs.compare import ChangeKind, compare
from deepstack_harness.runs.records import CaseRecord
from deepstack_harness.runs.store import StoredRun
from deepstack_harness.text import number, plural

NOTHING = "-"


@dataclass(frozen=True)
class VersionLine:
    """One line: the section that it is in, its name, and a text for each version."""

    section: str
    name: str
    cells: tuple[str, ...]
    kind: ChangeKind | None = None


@dataclass(frozen=True)
class VersionTable:
    """The table: `versions` by which its columns are named, its lines, and what a reader should know."""

    versions: tuple[str, ...]
    lines: tuple[VersionLine, ...]
    notes: tuple[str, ...]
    causes: tuple[tuple[ChangeCause, ...], ...]
    """The findings of each version against the one before it; one fewer than `versions`."""


def version_of(run: StoredRun) -> str:
    """Return the torch of a run; `unknown` for one that was stored without."""
    named = [about.environment.torch for about in run.abouts] + [row.torch for row in run.rows[:1]]
    return next(filter(None, named), "unknown")


def version_table(runs: Sequence[StoredRun]) -> VersionTable:
    """Return the table of two or more runs of the same cases, the oldest version first as a rule."""
    causes = tuple(tuple(findings(compare(old, new), old, new)) for old, new in pairwise(runs))
    common = set.intersection(*({case.case for case in run.cases} for run in runs))
    lines = [*_cause_lines(causes), *_arm_lines(runs, common)]
    return VersionTable(tuple(map(version_of, runs)), tuple(lines), tuple(_notes(runs, common)), causes)


def _notes(runs: Sequence[StoredRun], common: set[str]) -> Iterator[str]:
    for run in runs:
        if run.unfinished:
            others = {case.case for other in runs for case in other.cases}
            missing = len(others - {case.case for case in run.cases})
            yield (
                f"torch {version_of(run)} did not get to {plural(missing, 'case')}, which are not compared: "
                f"{run.unfinished}"
            )
    for label, value in _OTHERS.items():
        values = [value(run) for run in runs]
        if len(set(values)) > 1:
            yield f"{label} differs too, so torch may not be the only cause: {', '.join(values)}"
    if len({about.plan for run in runs for about in run.abouts}) > 1:
        yield f"the runs are not of the same cases: {len(common):,} are in all of them"


_OTHERS: Mapping[str, Callable[[StoredRun], str]] = {
    "Python": lambda run: ", ".join(sorted({about.environment.python for about in run.abouts})),
    "the harness": lambda run: ", ".join(sorted({about.harness for about in run.abouts})),
    "the processor": lambda run: ", ".join(sorted({about.environment.cpu for about in run.abouts})),
    "the GPU": lambda run: ", ".join(
        sorted({name for about in run.abouts for name in about.environment.device})
    ),
}
"""What else a run depends on; triton comes with its torch, and is listed with it."""


def _cause_lines(causes: Sequence[Sequence[ChangeCause]]) -> Iterator[VersionLine]:
    """Yield a line for each cause, regressions first: in how many cases it came with which version."""
    cells: dict[tuple[ChangeKind, str], dict[int, int]] = defaultdict(dict)
    for column, of_version in enumerate(causes, 1):
        for cause in of_version:
            cells[cause.kind, cause.title][column] = len(cause.cases)
    order = list(ChangeKind)
    for (kind, title), counts in sorted(
        cells.items(), key=lambda cell: (order.index(cell[0][0]), -max(cell[1].values()), cell[0][1])
    ):
        texts = (
            plural(counts[column], "case") if column in counts else NOTHING
            for column in range(1, len(causes) + 1)
        )
        yield VersionLine(kind, title, ("", *texts), kind)


def _arm_lines(runs: Sequence[StoredRun], common: set[str]) -> Iterator[VersionLine]:
    """Yield what differs in each arm, and one line of the arms in which nothing does."""
    by_arm: dict[str, list[str]] = defaultdict(list)
    for case in runs[0].cases:
        if case.case in common:
            by_arm[case.arm].append(case.case)
    measured = [_Measured(run) for run in runs]
    alike = []
    for arm, cases in sorted(by_arm.items()):
        section = f"{arm}, {plural(len(cases), 'case')}"
        lines = list(_lines_of(section, [run.figures(cases) for run in measured], measured, cases))
        alike += [] if lines else [f"{arm} ({plural(len(cases), 'case')})"]
        yield from lines
    if alike:
        yield VersionLine("alike in all versions", ", ".join(alike), ("",) * len(runs))


def _lines_of(
    section: str, figures: Sequence[Mapping[str, str]], measured: Sequence["_Measured"], cases: Sequence[str]
) -> Iterator[VersionLine]:
    names = list(dict.fromkeys(name for version in figures for name in version))
    names.sort(
        key=lambda name: (
            _ORDER.index("dropped guards") + 0.5 if name.startswith(_INDENT) else _ORDER.index(name),
            name,
        )
    )
    for name in names:
        cells = tuple(version.get(name, "0" if name.startswith(_INDENT) else NOTHING) for version in figures)
        if len(set(cells)) > 1:
            yield VersionLine(section, name, cells)
    ratios = tuple(_ratio(measured[0], run, cases) for run in measured)
    if any(ratio != NOTHING for ratio in ratios[1:]):
        yield VersionLine(section, "compile time", ratios)


_INDENT = "  "
_ORDER = (
    "rules broken", "rules kept", "rules not judged", "graphs", "recompiles", "graph breaks",
    "dropped guards", "kernels", "bytes of generated code", "largest distance",
)  # fmt: skip


class _Measured:
    """One run by case."""

    def __init__(self, run: StoredRun) -> None:
        self.cases: Mapping[str, CaseRecord] = {case.case: case for case in run.cases}
        self._rows: dict[str, list[Row]] = defaultdict(list)
        for row in run.rows:
            self._rows[row.case].append(row)

    def figures(self, names: Sequence[str]) -> dict[str, str]:
        """Return the figures of some cases; those that were not measured are not there."""
        cases = [self.cases[name] for name in names]
        codes = [case.code for case in cases if case.code is not None]
        verdicts = Counter(row.verdict for name in names for row in self._rows[name])
        counts: dict[str, int | None] = {
            "rules broken": sum(verdicts[verdict] for verdict in BROKEN),
            "rules kept": sum(verdicts[verdict] for verdict in KEPT),
            "rules not judged": verdicts[Verdict.ERROR],
            "graphs": _sum(case.graphs for case in cases),
            "recompiles": _sum(case.recompiles for case in cases),
            "graph breaks": _sum(case.breaks for case in cases),
            "dropped guards": _sum(sum(dropped.number for dropped in code.dropped) for code in codes),
            "kernels": _sum(None if code.kernels is None else len(code.kernels) for code in codes),
            "bytes of generated code": _sum(code.code_bytes for code in codes),
        }
        kinds = Counter[str]()
        for code in codes:
            kinds.update({f"{_INDENT}{dropped.kind}": dropped.number for dropped in code.dropped})
        figures = {name: f"{number:,}" for name, number in (counts | kinds).items() if number is not None}
        distances = [case.distances.eager for case in cases if case.distances is not None]
        if finite := [distance for distance in distances if distance < NOT_FINITE]:
            figures["largest distance"] = number(max(finite), 2)
        return figures


def _sum(numbers: Iterator[int | None]) -> int | None:
    known = [number for number in numbers if number is not None]
    return sum(known) if known else None


def _ratio(first: _Measured, other: _Measured, cases: Sequence[str]) -> str:
    """Return the median over cases of the time of compiling to that of the first run: `x1.08`."""
    pairs = [(_seconds(first.cases[case]), _seconds(other.cases[case])) for case in cases]
    ratios = [now / before for before, now in pairs if before and now]
    return f"x{median(ratios):.2f}" if ratios else NOTHING


def _seconds(case: CaseRecord) -> float | None:
    return None if case.code is None else case.code.seconds
