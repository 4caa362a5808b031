"""A run on the terminal: the matrix, then every finding, then how it stands."""

from deepstack_harness.contract.rules import Verdict
from deepstack_harness.reporting.findings import Finding, case_findings, detail_of, figure_of
from deepstack_harness.reporting.rerun import again
from deepstack_harness.reporting.run_data import RunData
from deepstack_harness.reporting.sanitize import one_line, shortened
from deepstack_harness.reporting.terminal.output import Column, Output
from deepstack_harness.reporting.verdict_matrix import Cell, Matrix, release_matrix, run_matrix
from deepstack_harness.reporting.verdict_words import MEANINGS, WORST_FIRST, Summary, summarise

MOST_KNOWN = 20
"""Expected failures that are listed; the unexpected ones always are."""

STYLES = {Verdict.FAIL: "red", Verdict.ERROR: "yellow", Verdict.IMPROVED: "cyan", Verdict.XFAIL: "magenta"}
_SHORT = {
    Verdict.FAIL: "FAIL", Verdict.ERROR: "ERR", Verdict.IMPROVED: "IMPR", Verdict.MISSING: "MISS",
    Verdict.XFAIL: "xf", Verdict.PASS: "ok", Verdict.SKIP: "-",
}  # fmt: skip


def show_run(output: Output, run: RunData) -> None:
    """All of it; the closing line is the summary."""
    summary = summarise(run)
    _show_matrix(output, run_matrix(run))
    if (releases := release_matrix(run)) is not None:
        _show_matrix(output, releases)
    _legend(output, summary)
    findings = case_findings(run)
    known = [one for one in findings if not one.unexpected]
    for finding in [one for one in findings if one.unexpected] + known[:MOST_KNOWN]:
        _show_finding(output, finding)
    if len(known) > MOST_KNOWN:
        output.line(f"and {len(known) - MOST_KNOWN} more cases broken as expected; --html FILE shows them")
    for note in run.notes:
        output.line(f"note: {note}", "yellow")
    output.line(f"{summary.progress}: {summary.expected}")
    output.verdict(summary.headline, good=summary.good)


def _show_matrix(output: Output, matrix: Matrix) -> None:
    if not matrix.lines:
        return
    widths = [max(len(line.names[place]) for line in matrix.lines) for place in range(len(matrix.heads))]
    columns = [Column(max(width, len(head))) for width, head in zip(widths, matrix.heads, strict=True)]
    columns += [Column(7, right=True) for _ in matrix.rules]
    output.row(columns, [*matrix.heads, *matrix.rules], "dim")
    for line in matrix.lines:
        shown = min(line.verdicts, key=WORST_FIRST.index)
        output.row(columns, [*map(one_line, line.names), *map(_cell, line.cells)], STYLES.get(shown, ""))
    output.line()


def _cell(cell: Cell | None) -> str:
    if cell is None:
        return ""
    times = f" {cell.times}" if cell.opened and cell.times > 1 else ""
    return _SHORT[cell.verdict] + times


def _legend(output: Output, summary: Summary) -> None:
    """Only the verdicts that are there."""
    seen = [f"{_SHORT[one]} {MEANINGS[one]}" for one in WORST_FIRST if summary.counts[one]]
    output.line("; ".join(seen), "dim")
    output.line()


def _show_finding(output: Output, finding: Finding) -> None:
    output.line(f"{finding.verdict}  {one_line(finding.title)}", STYLES.get(finding.verdict, ""))
    for trace in finding.traces:
        output.line(f"  trace      {one_line(trace)}")
    for row in finding.rows:
        figure = f"{figure_of(row)}; " if row.value is not None else ""
        said = shortened(one_line(detail_of(row)), 300)
        output.line(f"  {row.rule:<3} {row.verdict:<8} {one_line(figure)} {said}".rstrip())
    if finding.case and finding.case.diagnosis:
        output.line(f"  diagnosis  {shortened(one_line(finding.case.diagnosis), 600)}")
    if finding.case and finding.unexpected and (command := again(finding.case)):
        output.line(f"  again      {one_line(command)}")
    output.line()
