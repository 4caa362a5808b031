"""Findings: cases with a rule that is broken, unjudged or better than expected, the unexpected ones first."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from deepstack_harness.contract.rules import Verdict
from deepstack_harness.reporting.run_data import Judged, RunData
from deepstack_harness.reporting.sanitize import shortened
from deepstack_harness.reporting.verdict_words import UNEXPECTED, WORST_FIRST, of_interest, worst
from deepstack_harness.results.records import CaseRecord

MOST_OUTPUT = 4_000
MOST_DETAIL = 2_000


@dataclass(frozen=True)
class Finding:
    """One case, or one class of a source (then `case` is None), and its judgements of interest."""

    key: str
    title: str
    rows: tuple[Judged, ...]
    case: CaseRecord | None = None

    @property
    def verdict(self) -> Verdict:
        """The worst of its judgements."""
        return worst(row.verdict for row in self.rows)

    @property
    def unexpected(self) -> bool:
        """Whether somebody has to look."""
        return self.verdict in UNEXPECTED

    @property
    def rules(self) -> str:
        """The rules it is about."""
        return " ".join(row.rule for row in self.rows)

    @property
    def traces(self) -> tuple[str, ...]:
        """Each trace once."""
        return tuple(dict.fromkeys(row.trace for row in self.rows if row.trace))


def case_findings(run: RunData) -> list[Finding]:
    """Of the cases of a run."""
    found: dict[str, list[Judged]] = defaultdict(list)
    for row in filter(of_interest, run.rows):
        found[row.case].append(row)
    return _sorted(
        Finding(key, title_of(run.cases[key]), tuple(rows), run.cases[key]) for key, rows in found.items()
    )


def source_findings(run: RunData) -> list[Finding]:
    """Of the audited classes."""
    found: dict[str, list[Judged]] = defaultdict(list)
    for row in filter(of_interest, run.audit or ()):
        found[f"{row.source or row.revision} {row.model_class or ''}".strip()].append(row)
    return _sorted(Finding(title, title, tuple(rows)) for title, rows in found.items())


def title_of(case: CaseRecord) -> str:
    """A case in one line, without its trace."""
    return f"{case.family} {case.subject} {case.arm} {case.dtype} {case.device}"


def figure_of(row: Judged) -> str:
    """The figure of a judgement against its limit: `3 rows, limit 0`."""
    if row.value is None:
        return ""
    limit = "" if row.limit is None else f", limit {number(row.limit)}"
    return f"{number(row.value)} {row.unit}".strip() + limit


def number(value: float | None) -> str:
    """A figure for people: no more digits than matter, and a word for what is not finite."""
    if value is None:
        return ""
    if abs(value) > 1e300:  # what JSON cannot carry comes as the largest float
        return "not finite"
    return f"{value:,.0f}" if value == int(value) and abs(value) < 1e15 else f"{value:.4g}"


def detail_of(row: Judged) -> str:
    """What was seen, not too long."""
    return shortened(row.detail, MOST_DETAIL)


def _sorted(findings: Iterable[Finding]) -> list[Finding]:
    return sorted(findings, key=lambda one: WORST_FIRST.index(one.verdict))
