"""What all forms of a report show: findings, incidents, the matrix of verdicts, rerun commands.

A finding is the rows of a case, or of a class of a source, whose rule is broken, not judged, or passes
unexpectedly; the unexpected ones come first. An incident has its cases by subject: what each was expected to
break, and what it broke. The matrix has families or sources against the rules, with the worst verdict in each
cell.
"""

import glob
import shlex
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

from deepstack_harness.catalogue.incidents import Incident, catalogue
from deepstack_harness.catalogue.known import link_of
from deepstack_harness.catalogue.registry import FAMILIES
from deepstack_harness.contract.case import BufferKind, parse_subject
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.verdicts import BROKEN, OPENED, UNEXPECTED, WORST_FIRST, Row, Verdict, worst
from deepstack_harness.document.blocks import Block, Code, Column, Line, TextTable
from deepstack_harness.document.shown import shown
from deepstack_harness.runs.records import CaseRecord
from deepstack_harness.runs.report.run_data import RunData
from deepstack_harness.runs.torch_changes import VersionTable
from deepstack_harness.text import one_line, shortened

MOST_OUTPUT = 4_000
"""Characters of a worker's output in a report."""
MOST_DETAIL = 2_000
"""Characters of the detail of a finding in a report."""

Rows: TypeAlias = tuple[Row, ...]
"""A finding: the rows of one case, or of one class of a source, that somebody may want to look at."""


def case_findings(run: RunData) -> list[Rows]:
    """Return the finding of each case that has one, worst first."""
    return _findings(run.rows, lambda row: row.case)


def source_findings(run: RunData) -> list[Rows]:
    """Return the finding of each audited class that has one, worst first."""
    return _findings(run.audit or (), lambda row: (row.source or row.revision, row.model_class))


def _findings(rows: Iterable[Row], key: Callable[[Row], object]) -> list[Rows]:
    found: dict[object, list[Row]] = defaultdict(list)
    for row in rows:
        if row.verdict in OPENED:
            found[key(row)].append(row)
    return sorted(map(tuple, found.values()), key=lambda each: WORST_FIRST.index(verdict_of(each)))


def verdict_of(rows: Iterable[Row]) -> Verdict:
    """Return the worst verdict of some rows."""
    return worst(row.verdict for row in rows)


def title_of(case: CaseRecord) -> str:
    """Return a case in one line, without its trace."""
    return f"{case.family} {case.subject} {case.arm} {case.dtype} {case.device}"


def heading_of(run: RunData, rows: Rows) -> str:
    """Return what a finding is about: its case, or its source and class."""
    row = rows[0]
    case = run.cases.get(row.case)
    return title_of(case) if case else f"{row.source or row.revision} {row.model_class or ''}".strip()


def traces_of(rows: Rows) -> list[str]:
    """Return the traces of a finding, each once."""
    return list(dict.fromkeys(row.trace for row in rows if row.trace))


def finding_blocks(run: RunData, rows: Rows, most: int = MOST_DETAIL) -> Iterator[Block]:
    """Yield traces, diagnosis and a table of the rules of a finding, with texts of at most `most`."""
    case, traces = run.cases.get(rows[0].case), traces_of(rows)
    for trace in traces:
        yield Line(Code(trace), lead="trace: ")
    if case and case.diagnosis:
        yield Line(shortened(one_line(case.diagnosis), most), lead="diagnosis: ")
    lines = []
    for row in rows:
        words = shown(row)
        seen = shortened(one_line(row.detail), most) + (f" ({row.reach})" if row.reach else "")
        of_trace = f" on '{row.trace}'" if not case and len(traces) > 1 else ""
        rule = f"{words.name} {'' if case else row.regime}".rstrip()
        lines.append(([rule, row.verdict, words.measured, f"{seen}{of_trace}"], row.verdict.style))
    yield TextTable([*map(Column, ("rule", "verdict", "figure", "what was seen"))], lines)


NO_INCIDENT = "Cases of no incident: the traces of the contract, and those of tests"


@dataclass(frozen=True)
class SubjectLine:
    """One subject of an incident: the rules that its cases are known to break, and those that they broke."""

    subject: str
    cases: int
    expected: tuple[Rule, ...]
    seen: tuple[Rule, ...]
    verdict: Verdict

    @property
    def unexpected(self) -> bool:
        """Return whether a judgement of its cases is unexpected."""
        return self.verdict in UNEXPECTED


@dataclass(frozen=True)
class IncidentGroup:
    """All cases of one incident; `incident` is None for cases of none, and for one that is not known here."""

    key: str
    incident: Incident | None
    subjects: tuple[SubjectLine, ...]
    cases: frozenset[str]
    seconds: float

    @property
    def title(self) -> str:
        """The title of the incident with its id."""
        return f"{self.key}: {self.incident.title}" if self.incident else self.key or NO_INCIDENT

    @property
    def anchor(self) -> str:
        """The place in the page, the same in every run."""
        return f"incident-{self.key or 'none'}"

    @property
    def links(self) -> tuple[tuple[str, str | None], ...]:
        """References, each with its address upstream."""
        return tuple((name, link_of(name)) for name in self.incident.references) if self.incident else ()

    @property
    def verdict(self) -> Verdict:
        """The worst verdict of its cases."""
        return worst(line.verdict for line in self.subjects)

    @property
    def unexpected(self) -> bool:
        """Return whether somebody has to look."""
        return self.verdict in UNEXPECTED


def incident_groups(run: RunData) -> list[IncidentGroup]:
    """Return all incidents of which a case was played, those with something unexpected first."""
    incidents = {incident.id: incident for incident in catalogue()}
    cases: dict[str, list[CaseRecord]] = defaultdict(list)
    for case in run.cases.values():
        cases[case.incident or ""].append(case)
    rows: dict[str, list[Row]] = defaultdict(list)
    for row in run.rows:
        rows[row.case].append(row)
    groups = [
        IncidentGroup(
            key,
            incidents.get(key),
            tuple(_subject_lines(members, rows)),
            frozenset(case.case for case in members),
            sum(case.seconds for case in members),
        )
        for key, members in cases.items()
    ]
    order = {key: place for place, key in enumerate(incidents)}
    return sorted(
        groups,
        key=lambda group: (WORST_FIRST.index(group.verdict), order.get(group.key, len(order)), group.key),
    )


def _subject_lines(cases: Iterable[CaseRecord], rows: dict[str, list[Row]]) -> list[SubjectLine]:
    by_subject: dict[str, list[CaseRecord]] = defaultdict(list)
    for case in cases:
        by_subject[case.subject].append(case)
    lines = []
    for subject, members in by_subject.items():
        own = [row for case in members for row in rows[case.case]]
        expected = _in_order(rule for case in members for rule in case.expected or ())
        broken = _in_order(row.rule for row in own if row.verdict in BROKEN)
        verdict = worst([row.verdict for row in own] or [Verdict.SKIP])
        lines.append(SubjectLine(subject, len(members), expected, broken, verdict))
    return lines


def _in_order(rules: Iterable[Rule]) -> tuple[Rule, ...]:
    present = set(rules)
    return tuple(rule for rule in Rule if rule in present)


@dataclass(frozen=True)
class Cell:
    """All judgements of one rule in one line of the matrix."""

    rule: Rule
    rows: tuple[Row, ...]

    @cached_property
    def verdict(self) -> Verdict:
        """The worst verdict of its judgements."""
        return worst(row.verdict for row in self.rows)

    @property
    def times(self) -> int:
        """The number of judgements with that verdict."""
        return sum(row.verdict == self.verdict for row in self.rows)

    @property
    def opened(self) -> tuple[Row, ...]:
        """The judgements that a reader may want to see."""
        return tuple(row for row in self.rows if row.verdict in OPENED)


@dataclass(frozen=True)
class MatrixLine:
    """One line: `names` are what was judged, `cells` has None for a rule that was not."""

    names: tuple[str, ...]
    cells: tuple[Cell | None, ...]

    @property
    def verdicts(self) -> frozenset[Verdict]:
        """Every verdict of this line."""
        return frozenset(row.verdict for cell in self.cells if cell for row in cell.rows)


@dataclass(frozen=True)
class Matrix:
    """`heads` name the columns before the rules; only rules that something was judged by are there."""

    heads: tuple[str, ...]
    rules: tuple[Rule, ...]
    lines: tuple[MatrixLine, ...]


def run_matrix(run: RunData) -> Matrix:
    """Return families x arms x devices against rules."""
    return _matrix(("family", "arm", "device"), ((row.place, row) for row in run.rows))


def release_matrix(run: RunData) -> Matrix | None:
    """Return sources, their classes and both regimes against rules; None where no source was audited."""
    if run.audit is None:
        return None
    rows = ((row.source or row.revision, row.model_class or "-", row.regime or "-") for row in run.audit)
    return _matrix(("source", "class", "regime"), zip(rows, run.audit, strict=True))


def _matrix(heads: tuple[str, ...], rows: Iterable[tuple[tuple[str, ...], Row]]) -> Matrix:
    cells_of: dict[tuple[str, ...], dict[Rule, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for names, row in rows:
        cells_of[names][row.rule].append(row)
    rules = tuple(rule for rule in Rule if any(rule in by_rule for by_rule in cells_of.values()))
    return Matrix(
        heads,
        rules,
        tuple(
            MatrixLine(names, tuple(Cell(rule, tuple(own[rule])) if rule in own else None for rule in rules))
            for names, own in cells_of.items()
        ),
    )


def matrix_table(matrix: Matrix, text_of: Callable[[Cell], str]) -> TextTable:
    """Return a matrix as a table; `text_of` writes a cell."""
    columns = [*map(Column, matrix.heads), *(Column(str(rule), right=True) for rule in matrix.rules)]
    lines = [
        (
            [*line.names, *(text_of(cell) if cell else "" for cell in line.cells)],
            (worst(line.verdicts).style if line.verdicts else ""),
        )
        for line in matrix.lines
    ]
    return TextTable(columns, lines)


def versions_table(table: VersionTable) -> TextTable:
    """Return what changed from each version of torch to the next one."""
    columns = [
        Column("where"),
        Column("what"),
        *(Column(f"torch {version}", right=True) for version in table.versions),
    ]
    return TextTable(columns, [([line.section, line.name.strip(), *line.cells], "") for line in table.lines])


_SELECTED = ("family", "revision", "caller", "trace", "arm", "dtype")
_PLAYED_BY_RUN = frozenset({BufferKind.REGISTERED, BufferKind.USER})


def rerun_command(case: CaseRecord) -> str:
    """Return the command that plays this case and no other; empty for cases that no command plays."""
    if case.family.partition(":")[0] not in FAMILIES or case.buffer.kind not in _PLAYED_BY_RUN:
        return ""  # a test's
    own = ["--buffer", case.buffer.name] if case.buffer.kind is BufferKind.USER else []
    words = ["run", *own, "--tier", "nightly", "--device", case.device, *selection_of(case)]
    return f"python -m deepstack_harness {shlex.join(words)}"


def selection_of(case: CaseRecord) -> list[str]:
    """Return the words KEY=GLOB by which `run` selects this case."""
    _, caller = parse_subject(case.subject)
    values = (case.family, case.buffer.name, caller, case.trace, case.arm, case.dtype)
    return [f"{key}={glob.escape(value)}" for key, value in zip(_SELECTED, values, strict=True)]
