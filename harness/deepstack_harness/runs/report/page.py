"""The HTML page: one file, no network, everything from outside escaped.

A content security policy forbids every request, and every script but ours, by its hash.
"""

import base64
import hashlib
import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice

import jinja2
import msgspec
from markupsafe import Markup

from deepstack_harness import __version__
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.verdicts import BROKEN, UNEXPECTED, WORST_FIRST, Row, Verdict
from deepstack_harness.document.shown import shown
from deepstack_harness.runs.causes import fault_of
from deepstack_harness.runs.report.figures import figures_of
from deepstack_harness.runs.report.nights_strip import nights_of
from deepstack_harness.runs.report.run_data import RunData, summarise, tested
from deepstack_harness.runs.report.tables import (
    MOST_OUTPUT,
    Cell,
    Matrix,
    ReportedFinding,
    case_findings,
    detail_of,
    incident_groups,
    release_matrix,
    rerun_command,
    run_matrix,
    source_findings,
    title_of,
)
from deepstack_harness.runs.report.templating import new_environment, template_text
from deepstack_harness.text import number

MOST_FINDINGS = 300
MOST_SLOW = 10
MOST_CHANGES = 100
MOST_TODAY = 12
SCRIPT_BUDGET = 600_000
"""Characters of all scripts together: with more of them a page is too large for a phone."""


@dataclass(frozen=True)
class PageFinding:
    """A finding of the page: `key` is its place, the same in every run of the case.

    `script` is None where there is none, or no room for it.
    """

    key: str
    finding: ReportedFinding
    script: str | None
    no_room: bool


def render_page(run: RunData) -> str:
    """Return the whole page."""
    shown = _page_findings(case_findings(run), "case")
    audited = _page_findings(source_findings(run), "source")
    by_case = {each.finding.key: each for each in shown}
    groups = [
        (group, [each for key, each in by_case.items() if key in group.cases])
        for group in incident_groups(run)
    ]
    summary = summarise(run)
    return _environment().get_template("page.html.jinja").render(
        run=run, summary=summary, tested=tested(run), nights=nights_of(run), causes=causes_today(shown),
        version=__version__, rules=list(Rule), matrix=run_matrix(run),
        releases=release_matrix(run), figures=figures_of(run), groups=groups, shown=shown, audited=audited,
        slowest=sorted(run.cases.values(), key=lambda case: -case.seconds)[:MOST_SLOW],
        seconds=sum(case.seconds for case in run.cases.values()), title_of=title_of,
        all_findings=len(case_findings(run)), places=_Places(shown, audited), verdicts=[verdict for verdict
        in WORST_FIRST if summary.counts[verdict]], environment=[_flat(msgspec.to_builtins(about)) for
        about in run.about], filters=_filters(run_matrix(run)), css=Markup(template_text("page.css")),
        js=Markup(template_text("page.js")), hash=_hash(template_text("page.js")),
    )  # fmt: skip


class _Places:
    """The places of a cell's findings in the page."""

    def __init__(self, *groups: Sequence[PageFinding]) -> None:
        self._keys = {id(row): each.key for group in groups for each in group for row in each.finding.rows}

    def of(self, cell: Cell) -> str:
        """Return keys with spaces between them; empty where no room was left for these findings."""
        keys = (self._keys.get(id(row)) for row in cell.opened)
        return " ".join(dict.fromkeys(key for key in keys if key))


@dataclass(frozen=True)
class CauseToday:
    """What is unexpected today and was observed alike: its verdict, words, subjects and the shortest case."""

    verdict: Verdict
    words: str
    findings: tuple[PageFinding, ...]

    @property
    def shortest(self) -> PageFinding:
        """The finding with the shortest trace."""
        return min(self.findings, key=lambda shown: len(shown.finding.rows[0].trace))

    @property
    def subjects(self) -> tuple[str, ...]:
        """The buffers, each once."""
        return tuple(dict.fromkeys(shown.finding.rows[0].revision for shown in self.findings))


def causes_today(shown: Iterable[PageFinding]) -> list[CauseToday]:
    """Return the unexpected findings by what was observed first, the most cases first."""
    by_words: dict[tuple[Verdict, str], list[PageFinding]] = {}
    for each in shown:
        rows = [row for row in each.finding.rows if row.verdict in UNEXPECTED]
        if rows:
            by_words.setdefault(min(map(_observed, rows))[1:], []).append(each)
    causes = [CauseToday(verdict, words, tuple(found)) for (verdict, words), found in by_words.items()]
    return sorted(causes, key=lambda cause: (WORST_FIRST.index(cause.verdict), -len(cause.findings)))


def _observed(row: Row) -> tuple[tuple[bool, int], Verdict, str]:
    """Return when a row broke, its verdict, and what was observed; a buffer comes before its decoder."""
    if row.verdict not in BROKEN:
        return (True, 0), row.verdict, f"{row.rule} {row.rule.word}: {row.verdict.meaning}"
    fault = fault_of(row)
    return (fault.is_of_decoder, row.step or 0), row.verdict, fault.words


def _page_findings(findings: Iterable[ReportedFinding], letter: str) -> list[PageFinding]:
    """Return the first findings, with scripts while there is room; the unexpected come first."""
    shown, room = [], SCRIPT_BUDGET
    for finding in islice(findings, MOST_FINDINGS):
        script = finding.case.script if finding.case else None
        fits = script is not None and len(script) <= room
        room -= len(script) if script and fits else 0
        key = f"{letter}-{re.sub(r'[^0-9A-Za-z.]+', '-', finding.key)}"
        shown.append(PageFinding(key, finding, script if fits else None, bool(script) and not fits))
    return shown


def _filters(matrix: Matrix) -> list[tuple[str, list[str]]]:
    """Return each column before the rules with its values."""
    return [
        (head, sorted({line.names[place] for line in matrix.lines}))
        for place, head in enumerate(matrix.heads)
    ]


def _flat(about: object) -> list[tuple[str, str]]:
    """Return `run.json` flat: names and texts."""
    flat: list[tuple[str, str]] = []

    def walk(name: str, value: object) -> None:
        if isinstance(value, dict):
            for key, each in value.items():
                walk(f"{name} {key}".strip(), each)
        elif isinstance(value, list | tuple) and value:
            flat.append((name, shlex.join(value) if name == "command" else ", ".join(map(str, value))))
        elif value not in (None, (), [], ""):
            flat.append((name, str(value)))

    walk("", about)
    return flat


@cache
def _environment() -> jinja2.Environment:
    environment = new_environment()
    environment.filters |= {"number": number, "duration": duration}
    environment.filters |= {"safe_svg": Markup}
    environment.globals |= {
        "unexpected": UNEXPECTED, "Verdict": Verdict,
        "shown": shown, "detail_of": detail_of, "most_output": MOST_OUTPUT,
        "most_changes": MOST_CHANGES, "most_today": MOST_TODAY, "rerun_command": rerun_command,
    }  # fmt: skip
    return environment


def duration(seconds: float) -> str:
    """Write seconds for people: `12 s`, `3 min 20 s`, `1 h 5 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    return (
        f"{whole // 60} min {whole % 60} s" if whole < 3600 else f"{whole // 3600} h {whole % 3600 // 60} min"
    )


def _hash(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
