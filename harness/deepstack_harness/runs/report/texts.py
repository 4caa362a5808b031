"""A run as texts for GitHub: Markdown for a job summary, and annotations of the commit.

The summary has the incidents first, and is short where nothing is unexpected.  Annotations are lines of a
job's log, which the runner turns into notes.
"""

import html
from collections.abc import Iterator

from deepstack_harness.contract.verdicts import WORST_FIRST, Verdict
from deepstack_harness.document.markdown import (
    MOST_ANNOTATIONS,
    MOST_BYTES,
    annotation,
    cell_text,
    code,
    plain,
    table_head,
    table_row,
)
from deepstack_harness.document.shown import shown
from deepstack_harness.runs.report.run_data import RunData, summarise, tested
from deepstack_harness.runs.report.tables import (
    Cell,
    IncidentGroup,
    Matrix,
    ReportedFinding,
    case_findings,
    detail_of,
    incident_groups,
    release_matrix,
    rerun_command,
    run_matrix,
)
from deepstack_harness.runs.torch_changes import VersionTable
from deepstack_harness.text import one_line, plural, shortened

MOST_FINDINGS = 60
MOST_CHANGES = 30


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
    yield f"Run {plain(run.name)}. {plain(tested(run))}\n"
    for note in run.notes:
        yield f"> {plain(note)}\n"
    yield from _changes(run)
    if run.versions is not None:
        yield "\n".join(_versions(run.versions))
    groups = incident_groups(run)
    yield "\n".join(_incidents(groups))
    if summary.good:
        return
    yield from _findings([finding for finding in case_findings(run) if finding.unexpected])
    yield "\n### Verdicts\n"
    yield "\n".join(_matrix(run_matrix(run)))
    seen = [
        f"{verdict.sign} {verdict} {verdict.meaning}" for verdict in WORST_FIRST if summary.counts[verdict]
    ]
    yield f"\n{'; '.join(seen)}\n"
    if releases := release_matrix(run):
        yield "\n### Releases against rules\n"
        yield "\n".join(_matrix(releases))


def _versions(table: VersionTable) -> Iterator[str]:
    """Iterate over the lines of what another torch changes, as a Markdown table."""
    yield "\n### What does this torch change?\n"
    for note in table.notes:
        yield f"> {plain(note)}\n"
    yield table_row(["", "torch", *map(plain, table.versions)])
    yield f"|---|---|{'---:|' * len(table.versions)}"
    for line in table.lines:
        yield table_row([plain(line.section), plain(line.name.strip()), *map(plain, line.cells)])
    yield ""


def _changes(run: RunData) -> Iterator[str]:
    if run.changes is None:
        return
    causes = run.changes.findings
    count = plural(len(causes), "finding") if causes else "nothing changed"
    yield f"Since the run {plain(run.changes.since)}: {count}.\n"
    for setting in run.changes.settings:
        yield f"> Another setting, {plain(setting)}\n"
    if causes:
        lines = table_head(["change", "cause", "cases", "shortest trace", "follows"])
        for cause in causes[:MOST_CHANGES]:
            trace = code(cause.shortest.trace, in_table=True) if cause.shortest else ""
            texts = (cell_text(cause.kind), cell_text(cause.title), str(len(cause.cases)), trace)
            lines.append(table_row([*texts, str(len(cause.consequences))]))
        yield "\n".join(lines) + "\n"
    if len(causes) > MOST_CHANGES:
        yield f"{len(causes) - MOST_CHANGES} more findings are in the HTML report.\n"


def _incidents(groups: list[IncidentGroup]) -> Iterator[str]:
    if not groups:
        yield "No case was played."
        return
    yield from table_head(["", "incident", "cases", "known to break", "broke here"])
    for group in groups:
        expected, seen = (
            "; ".join(f"{cell_text(line.subject)} {' '.join(rules)}" for line, rules in pairs if rules)
            for pairs in (
                [(line, line.expected) for line in group.subjects],
                [(line, line.seen) for line in group.subjects],
            )
        )
        same = "the same" if expected and expected == seen else seen or "nothing"
        cases = str(sum(line.cases for line in group.subjects))
        yield table_row([group.verdict.sign, _linked(group), cases, expected or "nothing", same])


def _linked(group: IncidentGroup) -> str:
    address = next((address for _, address in group.links if address), None)
    return (
        f"[{group.key}]({address}): {cell_text(group.incident.title)}"
        if address and group.incident
        else cell_text(group.title)
    )


def _findings(findings: list[ReportedFinding]) -> Iterator[str]:
    if findings:
        yield "\n### Unexpected\n"
    for finding in findings[:MOST_FINDINGS]:
        yield "\n".join(_finding(finding))
    if len(findings) > MOST_FINDINGS:
        yield f"\n{len(findings) - MOST_FINDINGS} more cases are in the HTML report.\n"


def _matrix(matrix: Matrix) -> Iterator[str]:
    if not matrix.lines:
        yield "No case was judged."
        return
    yield from table_head([*matrix.heads, *matrix.rules])
    for line in matrix.lines:
        yield table_row([*map(cell_text, line.names), *map(_cell, line.cells)])


def _cell(cell: Cell | None) -> str:
    if cell is None:
        return ""
    return f"{cell.verdict.sign} {cell.verdict} {cell.times}" if cell.opened else cell.verdict.sign


def _finding(finding: ReportedFinding) -> Iterator[str]:
    # An HTML block: nothing in it is read as Markdown before the empty line.
    title = html.escape(one_line(finding.title), quote=False)
    yield f"<details><summary>{finding.verdict.sign} {finding.verdict} {title}</summary>\n"
    for trace in finding.traces:
        yield f"trace: {code(trace)}\n"
    if finding.case and finding.case.diagnosis:
        yield f"diagnosis: {plain(finding.case.diagnosis)}\n"
    yield from table_head(["rule", "verdict", "figure", "what was seen"])
    for row in finding.rows:
        seen = cell_text(shortened(detail_of(row), 500))
        regime = "" if finding.case else row.regime
        rule = f"{shown(row).name} {regime}".strip()
        yield table_row([rule, row.verdict, cell_text(shown(row).measured), seen])
    if finding.case and (command := rerun_command(finding.case)):
        yield f"\nrerun: {code(command)}"
    yield "\n</details>\n"


_LEVELS = {
    Verdict.FAIL: "error",
    Verdict.ERROR: "error",
    Verdict.IMPROVED: "warning",
    Verdict.MISSING: "warning",
}


def annotations(run: RunData) -> Iterator[str]:
    """Write errors for broken and unjudged rules, warnings for other unexpected ones, and one summary."""
    summary = summarise(run)
    findings = [finding for finding in case_findings(run) if finding.unexpected]
    for level in ("error", "warning"):
        chosen = [finding for finding in findings if _LEVELS[finding.verdict] == level]
        for finding in chosen[:MOST_ANNOTATIONS]:
            yield annotation(level, f"{finding.verdict} {finding.title}", _message(finding))
        if len(chosen) > MOST_ANNOTATIONS:
            yield annotation(
                level, "and more", f"{len(chosen) - MOST_ANNOTATIONS} more cases; the report has them all"
            )
    for note in run.notes[:MOST_ANNOTATIONS]:
        yield annotation("warning", "note", note)
    level = "notice" if summary.finished and not summary.stages else "error"
    played = f"; {summary.progress}" if summary.finished else ""
    yield annotation(level, "deepstack harness", f"{summary.headline}{played}: {summary.expected}")


def _message(finding: ReportedFinding) -> str:
    lines = [f"trace: {one_line(trace)}" for trace in finding.traces]
    for row in finding.rows:
        sentence = " ".join(filter(None, (shown(row).measured, one_line(detail_of(row)))))
        lines.append(f"{shown(row).name} {row.verdict}: {shortened(sentence, 400)}")
    if finding.case and finding.case.diagnosis:
        lines.append(f"diagnosis: {shortened(one_line(finding.case.diagnosis), 600)}")
    if finding.case and (command := rerun_command(finding.case)):
        lines.append(f"rerun: {one_line(command)}")
    return "\n".join(lines)
