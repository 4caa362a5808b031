"""Reported findings: cases with a broken, unjudged or unexpectedly kept rule, the unexpected ones first."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from deepstack_harness.clean_text import shortened
from deepstack_harness.contract.row import Row
from deepstack_harness.contract.verdicts import OPENED, UNEXPECTED, WORST_FIRST, Verdict, worst
from deepstack_harness.reporting.run_data import RunData
from deepstack_harness.results.records import CaseRecord

MOST_OUTPUT = 4_000
MOST_DETAIL = 2_000


@dataclass(frozen=True)
class ReportedFinding:
    """One case, or one class of a source (then `case` is None), and its judgements of interest."""

    key: str
    title: str
    rows: tuple[Row, ...]
    case: CaseRecord | None = None

    @property
    def verdict(self) -> Verdict:
        """The worst verdict of its judgements."""
        return worst(row.verdict for row in self.rows)

    @property
    def unexpected(self) -> bool:
        """Say whether somebody has to look."""
        return self.verdict in UNEXPECTED

    @property
    def rules(self) -> str:
        """The names of its rules."""
        return " ".join(row.rule for row in self.rows)

    @property
    def traces(self) -> tuple[str, ...]:
        """The traces, each once."""
        return tuple(dict.fromkeys(row.trace for row in self.rows if row.trace))


def case_findings(run: RunData) -> list[ReportedFinding]:
    """Return a finding for each case with something to tell, worst first."""
    found: dict[str, list[Row]] = defaultdict(list)
    for row in run.rows:
        if row.verdict in OPENED:
            found[row.case].append(row)
    return _sorted(
        ReportedFinding(key, title_of(run.cases[key]), tuple(rows), run.cases[key])
        for key, rows in found.items()
    )


def source_findings(run: RunData) -> list[ReportedFinding]:
    """Return a finding for each audited class with something to tell, worst first."""
    found: dict[str, list[Row]] = defaultdict(list)
    for row in run.audit or ():
        if row.verdict in OPENED:
            found[f"{row.source or row.revision} {row.model_class or ''}".strip()].append(row)
    return _sorted(ReportedFinding(title, title, tuple(rows)) for title, rows in found.items())


def title_of(case: CaseRecord) -> str:
    """Return a case in one line, without its trace."""
    return f"{case.family} {case.subject} {case.arm} {case.dtype} {case.device}"


def figure_of(row: Row) -> str:
    """Return the figure of a judgement against its limit: `3 rows, limit 0`."""
    if row.value is None:
        return ""
    limit = "" if row.limit is None else f", limit {number(row.limit)}"
    return f"{number(row.value)} {row.unit}".strip() + limit


def number(value: float | None) -> str:
    """Write a figure for people: no more digits than matter, and words for what is not finite."""
    if value is None:
        return ""
    if abs(value) > 1e300:  # what JSON cannot carry comes as the largest float
        return "not finite"
    return f"{value:,.0f}" if value == int(value) and abs(value) < 1e15 else f"{value:.4g}"


def detail_of(row: Row) -> str:
    """Return the detail of a judgement, shortened."""
    return shortened(row.detail, MOST_DETAIL)


def _sorted(findings: Iterable[ReportedFinding]) -> list[ReportedFinding]:
    return sorted(findings, key=lambda finding: WORST_FIRST.index(finding.verdict))
