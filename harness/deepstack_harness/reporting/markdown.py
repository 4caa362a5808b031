"""A run as Markdown for a GitHub job summary; what comes from outside stands in escaped HTML elements."""

import html
import re
from collections.abc import Iterable, Iterator

from deepstack_harness.clean_text import one_line, shortened
from deepstack_harness.contract.verdicts import WORST_FIRST
from deepstack_harness.reporting.findings import ReportedFinding, case_findings, detail_of, figure_of
from deepstack_harness.reporting.rerun import again
from deepstack_harness.reporting.run_data import RunData
from deepstack_harness.reporting.summary import summarise
from deepstack_harness.reporting.verdict_matrix import Cell, Matrix, release_matrix, run_matrix

MOST_FINDINGS = 60
MOST_BYTES = 900_000
"""GitHub takes 1 MiB for a step's summary, and shows none of a longer one."""

# Markdown is also read inside HTML elements.
_ACTIVE = re.compile(r"[\\`*_{}\[\]()#+\-.!|~:@/$=^]")


def render_markdown(run: RunData) -> str:
    """Return the summary; never longer than GitHub takes."""
    lines, size, left = [], 0, 0
    for block in _blocks(run):
        more = len(block.encode()) + 1
        if size + more > MOST_BYTES:
            left += 1
        else:
            size += more
            lines.append(block)
    if left:
        lines.append(f"\n{left} blocks found no room here; the HTML report has them.")
    return "\n".join(lines) + "\n"


def _blocks(run: RunData) -> Iterator[str]:
    """Iterate over blocks; any of them may be left out."""
    summary = summarise(run)
    yield f"## {'✅' if summary.good else '❌'} {plain(summary.headline)}\n"
    yield f"{plain(summary.progress)}: {summary.expected}.\n"
    yield f"Run {plain(run.name)}, started {plain(run.when)}.\n"
    for note in run.notes:
        yield f"> {plain(note)}\n"
    yield "\n".join(_matrix(run_matrix(run)))
    seen = [
        f"{verdict.sign} {verdict} {verdict.meaning}" for verdict in WORST_FIRST if summary.counts[verdict]
    ]
    yield f"\n{'; '.join(seen)}\n"
    yield from _findings(case_findings(run))
    if releases := release_matrix(run):
        yield "\n### Releases against rules\n"
        yield "\n".join(_matrix(releases))


def _findings(findings: list[ReportedFinding]) -> Iterator[str]:
    if findings:
        yield "### Findings\n"
    for finding in findings[:MOST_FINDINGS]:
        yield "\n".join(_finding(finding))
    if len(findings) > MOST_FINDINGS:
        yield f"\n{len(findings) - MOST_FINDINGS} more cases are in the HTML report.\n"


def _matrix(matrix: Matrix) -> Iterator[str]:
    if not matrix.lines:
        yield "No case was judged."
        return
    yield _row([*matrix.heads, *matrix.rules])
    yield _row("---" for _ in (*matrix.heads, *matrix.rules))
    for line in matrix.lines:
        yield _row([*map(plain, line.names), *map(_cell, line.cells)])


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(cell: Cell | None) -> str:
    if cell is None:
        return ""
    return f"{cell.verdict.sign} {cell.verdict} {cell.times}" if cell.opened else cell.verdict.sign


def _finding(finding: ReportedFinding) -> Iterator[str]:
    yield f"<details><summary>{finding.verdict.sign} {finding.verdict} {plain(finding.title)}</summary>\n"
    for trace in finding.traces:
        yield f"trace: <code>{plain(trace)}</code>\n"
    if finding.case and finding.case.diagnosis:
        yield f"diagnosis: {plain(finding.case.diagnosis)}\n"
    yield _row(["rule", "verdict", "figure", "what was seen"])
    yield _row(["---"] * 4)
    for row in finding.rows:
        seen = plain(shortened(detail_of(row), 500))
        regime = "" if finding.case else row.regime
        yield _row([f"{row.rule} {row.rule.word} {regime}".strip(), row.verdict, plain(figure_of(row)), seen])
    if finding.case and (command := again(finding.case)):
        yield f"\nrerun: <code>{plain(command)}</code>"
    yield "\n</details>\n"


def plain(text: str) -> str:
    """Return `text` on one line, escaped: no markup, link, mention or issue reference in it comes alive."""
    return _ACTIVE.sub(
        lambda found: f"&#{ord(found[0])};", html.escape(one_line(text)).replace("&#x27;", "'")
    )
