"""The HTML page: one file, no network, everything from outside escaped.

A content security policy forbids every request, and every script but ours, by its hash.
"""

import base64
import hashlib
import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

import jinja2
import msgspec
from markupsafe import Markup

from deepstack_harness import __version__
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.verdicts import BROKEN, UNEXPECTED, WORST_FIRST, Row, Verdict
from deepstack_harness.runs.causes import fault_of
from deepstack_harness.runs.report.figures import figures_of
from deepstack_harness.runs.report.nights_strip import nights_of
from deepstack_harness.runs.report.run_data import RunData, summarise, tested
from deepstack_harness.runs.report.tables import (
    MOST_OUTPUT,
    Cell,
    Rows,
    case_findings,
    finding_blocks,
    heading_of,
    incident_groups,
    release_matrix,
    rerun_command,
    run_matrix,
    source_findings,
    title_of,
    traces_of,
    verdict_of,
    versions_table,
)
from deepstack_harness.runs.report.templating import new_environment, template_text
from deepstack_harness.text import number

MOST_FINDINGS = 300
"""Findings that the page shows, the unexpected ones first; it counts all."""
MOST_SLOW = 10
"""Slowest cases that the page shows."""
MOST_CHANGES = 100
"""Changes since earlier runs that the page shows; it counts all."""
MOST_TODAY = 12
"""Lines of what is new today."""
SCRIPT_BUDGET = 600_000
"""Characters of all scripts together: with more of them a page is too large for a phone."""


def render_page(run: RunData) -> str:
    """Return the whole page."""
    found, sources = case_findings(run), source_findings(run)
    shown, audited = found[:MOST_FINDINGS], sources[:MOST_FINDINGS]
    groups = [
        (group, [rows for rows in shown if rows[0].case in group.cases]) for group in incident_groups(run)
    ]
    keys = {id(row): key_of(run, rows) for rows in (*shown, *audited) for row in rows}

    def places(cell: Cell) -> str:
        return " ".join(dict.fromkeys(keys[id(row)] for row in cell.opened if id(row) in keys))

    summary, matrix, script = summarise(run), run_matrix(run), template_text("page.js")
    # Each column before the rules with its values.
    filters = [
        (head, sorted({line.names[place] for line in matrix.lines}))
        for place, head in enumerate(matrix.heads)
    ]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return _environment().get_template("page.html.jinja").render(
        run=run, summary=summary, tested=tested(run), nights=nights_of(run), causes=causes_today(shown),
        version=__version__, rules=list(Rule), matrix=matrix,
        releases=release_matrix(run), figures=figures_of(run), groups=groups, shown=shown, audited=audited,
        seconds=sum(case.seconds for case in run.cases.values()),
        slowest=sorted(run.cases.values(), key=lambda case: -case.seconds)[:MOST_SLOW],
        all_findings=len(found), places=places,
        verdicts=[verdict for verdict in WORST_FIRST if summary.counts[verdict]],
        environment=[_flat(msgspec.to_builtins(about)) for about in run.about], scripts=_scripts(run, shown),
        filters=filters, css=Markup(template_text("page.css")), js=Markup(script), hash=digest,
    )  # fmt: skip


def key_of(run: RunData, rows: Rows) -> str:
    """Return the place of a finding in the page, the same in every run of the case."""
    case = rows[0].case
    name = f"case-{case}" if case in run.cases else f"source-{heading_of(run, rows)}"
    return re.sub(r"[^0-9A-Za-z.]+", "-", name)


def _scripts(run: RunData, findings: Iterable[Rows]) -> dict[str, str]:
    """Return the scripts of the first findings, by case, as long as there is room."""
    scripts, room = {}, SCRIPT_BUDGET
    for rows in findings:
        script = run.cases[rows[0].case].script
        if script and len(script) <= room:
            room -= len(script)
            scripts[rows[0].case] = script
    return scripts


@dataclass(frozen=True)
class CauseToday:
    """What is unexpected today and was observed alike: its verdict, words, and findings."""

    verdict: Verdict
    words: str
    findings: tuple[Rows, ...]

    @property
    def shortest(self) -> Rows:
        """The finding with the shortest trace."""
        return min(self.findings, key=lambda rows: len(rows[0].trace))

    @property
    def subjects(self) -> tuple[str, ...]:
        """The buffers, each once."""
        return tuple(dict.fromkeys(rows[0].revision for rows in self.findings))


def causes_today(findings: Iterable[Rows]) -> list[CauseToday]:
    """Return the unexpected findings by what was observed first, the most cases first."""
    by_words: dict[tuple[Verdict, str], list[Rows]] = {}
    for rows in findings:
        unexpected = [row for row in rows if row.verdict in UNEXPECTED]
        if unexpected:
            by_words.setdefault(min(map(_observed, unexpected))[1:], []).append(rows)
    causes = [CauseToday(verdict, words, tuple(found)) for (verdict, words), found in by_words.items()]
    return sorted(causes, key=lambda cause: (WORST_FIRST.index(cause.verdict), -len(cause.findings)))


def _observed(row: Row) -> tuple[tuple[bool, int], Verdict, str]:
    """Return when a row broke, its verdict, and what was observed; a buffer comes before its decoder."""
    if row.verdict not in BROKEN:
        return (True, 0), row.verdict, f"{row.rule} {row.rule.word}: {row.verdict.meaning}"
    fault = fault_of(row)
    return (fault.is_of_decoder, row.step or 0), row.verdict, fault.words


def _flat(about: object) -> list[tuple[str, str]]:
    """Return `run.json` flat: names and texts."""
    flat: list[tuple[str, str]] = []

    def walk(name: str, value: object) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                walk(f"{name} {key}".strip(), inner)
        elif isinstance(value, list | tuple) and value:
            flat.append((name, shlex.join(value) if name == "command" else ", ".join(map(str, value))))
        elif value not in (None, (), [], ""):
            flat.append((name, str(value)))

    walk("", about)
    return flat


@cache
def _environment() -> jinja2.Environment:
    environment = new_environment()
    environment.filters |= {
        "number": number,
        "duration": duration,
        "kind": lambda value: type(value).__name__,
    }
    environment.filters |= {"safe_svg": Markup}
    environment.globals |= {
        "unexpected": UNEXPECTED, "key_of": key_of, "heading_of": heading_of, "traces_of": traces_of,
        "verdict_of": verdict_of, "title_of": title_of, "finding_blocks": finding_blocks,
        "versions_table": versions_table,
        "most_output": MOST_OUTPUT, "most_changes": MOST_CHANGES, "most_today": MOST_TODAY,
        "rerun_command": rerun_command,
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
