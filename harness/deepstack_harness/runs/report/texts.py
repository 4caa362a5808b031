"""A run as texts for GitHub: Markdown for a job summary, and annotations of the commit.

The summary has the incidents first, and is short where nothing is unexpected. Annotations are lines of a
job's log, which the runner turns into notes.
"""

from collections.abc import Iterable, Iterator

from deepstack_harness.contract.verdicts import UNEXPECTED, WORST_FIRST, Verdict
from deepstack_harness.document.blocks import (
    NOTE,
    Block,
    Code,
    Column,
    Details,
    Heading,
    Line,
    Link,
    TextTable,
)
from deepstack_harness.document.markdown import MOST_ANNOTATIONS, MOST_BYTES, annotation, fitted
from deepstack_harness.document.shown import shown
from deepstack_harness.runs.report.run_data import Changes, RunData, summarise, tested
from deepstack_harness.runs.report.tables import (
    MOST_DETAIL,
    Cell,
    IncidentGroup,
    Rows,
    case_findings,
    finding_blocks,
    heading_of,
    incident_groups,
    matrix_table,
    release_matrix,
    rerun_command,
    run_matrix,
    traces_of,
    verdict_of,
    versions_table,
)
from deepstack_harness.text import one_line, plural, shortened

MOST_FINDINGS = 60
"""Findings in the Markdown of a run: a summary of a job is read in one go. It counts all."""
MOST_CHANGES = 30
"""Changes in the Markdown of a run; it counts all."""


def render_markdown(run: RunData) -> str:
    """Return the summary; never longer than GitHub takes."""
    return fitted(_blocks(run), MOST_BYTES, "line", "the HTML report has them.")


def _blocks(run: RunData) -> Iterator[Block]:
    summary = summarise(run)
    yield Heading(f"{'✅' if summary.good else '❌'} {summary.headline}")
    yield Line(f"{summary.progress}: {summary.expected}.")
    yield Line(f"Run {run.name}. {tested(run)}")
    yield from (Line(note, NOTE) for note in run.notes)
    if run.changes is not None:
        yield from _changes(run.changes)
    if run.versions is not None:
        yield Heading("What does this torch change?", 3)
        yield from (Line(note, NOTE) for note in run.versions.notes)
        yield versions_table(run.versions)
    groups = incident_groups(run)
    yield _incidents(groups) if groups else Line("No case was played.")
    if summary.good:
        return
    yield from _findings(run, [rows for rows in case_findings(run) if verdict_of(rows) in UNEXPECTED])
    yield Heading("Verdicts", 3)
    matrix = run_matrix(run)
    yield matrix_table(matrix, _cell) if matrix.lines else Line("No case was judged.")
    counted = [verdict for verdict in WORST_FIRST if summary.counts[verdict]]
    yield Line("; ".join(f"{verdict.sign} {verdict} {verdict.meaning}" for verdict in counted))
    if releases := release_matrix(run):
        yield Heading("Releases against rules", 3)
        yield matrix_table(releases, _cell)


def _changes(changes: Changes) -> Iterator[Block]:
    causes = changes.findings
    count = plural(len(causes), "finding") if causes else "nothing changed"
    yield Line(f"Since the run {changes.since}: {count}.")
    yield from (Line(f"Another setting, {setting}", NOTE) for setting in changes.settings)
    if causes:
        lines = [
            [cause.kind, cause.title, str(len(cause.cases)),
             Code(cause.shortest.trace if cause.shortest else ""), str(len(cause.consequences))]
            for cause in causes[:MOST_CHANGES]
        ]  # fmt: skip
        heads = ("change", "cause", "cases", "shortest trace", "follows")
        yield TextTable([*map(Column, heads)], [(line, "") for line in lines])
    if len(causes) > MOST_CHANGES:
        yield Line(f"{len(causes) - MOST_CHANGES} more findings are in the HTML report.")


def _incidents(groups: Iterable[IncidentGroup]) -> TextTable:
    lines = []
    for group in groups:
        expected, seen = (
            "; ".join(f"{subject} {' '.join(rules)}" for subject, rules in pairs if rules)
            for pairs in (
                [(line.subject, line.expected) for line in group.subjects],
                [(line.subject, line.seen) for line in group.subjects],
            )
        )
        same = "the same" if expected and expected == seen else seen or "nothing"
        cases = str(sum(line.cases for line in group.subjects))
        address = next((address for _, address in group.links if address), None)
        title = Link(group.title, address) if address else group.title
        lines.append(([group.verdict.sign, title, cases, expected or "nothing", same], ""))
    heads = ("", "incident", "cases", "known to break", "broke here")
    return TextTable([*map(Column, heads)], lines)


def _findings(run: RunData, findings: list[Rows]) -> Iterator[Block]:
    if findings:
        yield Heading("Unexpected", 3)
    for rows in findings[:MOST_FINDINGS]:
        verdict, command = verdict_of(rows), rerun_command(run.cases[rows[0].case])
        rerun = [Line("rerun:", command=command)] if command else []
        summary = Line(f"{verdict.sign} {verdict} {heading_of(run, rows)}")
        yield Details(summary, [*finding_blocks(run, rows, 500), *rerun])
    if len(findings) > MOST_FINDINGS:
        yield Line(f"{len(findings) - MOST_FINDINGS} more cases are in the HTML report.")


def _cell(cell: Cell) -> str:
    return f"{cell.verdict.sign} {cell.verdict} {cell.times}" if cell.opened else cell.verdict.sign


_LEVELS = {
    Verdict.FAIL: "error",
    Verdict.ERROR: "error",
    Verdict.IMPROVED: "warning",
    Verdict.MISSING: "warning",
}


def annotations(run: RunData) -> Iterator[str]:
    """Write errors for broken and unjudged rules, warnings for other unexpected ones, and one summary."""
    summary = summarise(run)
    findings = case_findings(run)
    for level in ("error", "warning"):
        chosen = [rows for rows in findings if _LEVELS.get(verdict_of(rows)) == level]
        for rows in chosen[:MOST_ANNOTATIONS]:
            yield annotation(level, f"{verdict_of(rows)} {heading_of(run, rows)}", _message(run, rows))
        if len(chosen) > MOST_ANNOTATIONS:
            yield annotation(
                level, "and more", f"{len(chosen) - MOST_ANNOTATIONS} more cases; the report has them all"
            )
    for note in run.notes[:MOST_ANNOTATIONS]:
        yield annotation("warning", "note", note)
    level = "notice" if summary.finished and not summary.stages else "error"
    played = f"; {summary.progress}" if summary.finished else ""
    yield annotation(level, "deepstack harness", f"{summary.headline}{played}: {summary.expected}")


def _message(run: RunData, rows: Rows) -> str:
    case = run.cases[rows[0].case]
    lines = [f"trace: {one_line(trace)}" for trace in traces_of(rows)]
    for row in rows:
        detail = one_line(shortened(row.detail, MOST_DETAIL))
        sentence = "; ".join(filter(None, (shown(row).measured, detail)))
        lines.append(f"{shown(row).name} {row.verdict}: {shortened(sentence, 400)}")
    if case.diagnosis:
        lines.append(f"diagnosis: {shortened(one_line(case.diagnosis), 600)}")
    if command := rerun_command(case):
        lines.append(f"rerun: {one_line(command)}")
    return "\n".join(lines)
