"""A run on the terminal: the matrix, then the findings, then the summary."""

from deepstack_harness.clean_text import one_line, shortened
from deepstack_harness.contract.verdicts import WORST_FIRST, worst
from deepstack_harness.reporting.findings import ReportedFinding, case_findings, detail_of, figure_of
from deepstack_harness.reporting.rerun import again
from deepstack_harness.reporting.run_data import RunData
from deepstack_harness.reporting.summary import Summary, summarise
from deepstack_harness.reporting.terminal.output import Column, Output
from deepstack_harness.reporting.verdict_matrix import Cell, Matrix, release_matrix, run_matrix

MOST_KNOWN = 20
"""Expected failures that are listed; the unexpected ones always are."""


def show_run(output: Output, run: RunData) -> None:
    """Print the matrix, the findings and the notes; the closing line is the summary."""
    summary = summarise(run)
    _show_matrix(output, run_matrix(run))
    if (releases := release_matrix(run)) is not None:
        _show_matrix(output, releases)
    _legend(output, summary)
    findings = case_findings(run)
    known = [finding for finding in findings if not finding.unexpected]
    unexpected = [finding for finding in findings if finding.unexpected]
    for finding in unexpected + known[:MOST_KNOWN]:
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
        cells = [*map(one_line, line.names), *map(_cell, line.cells)]
        output.row(columns, cells, worst(line.verdicts).style)
    output.line()


def _cell(cell: Cell | None) -> str:
    if cell is None:
        return ""
    times = f" {cell.times}" if cell.opened and cell.times > 1 else ""
    return cell.verdict.abbreviation + times


def _legend(output: Output, summary: Summary) -> None:
    """Print the meaning of the verdicts that are there."""
    seen = [f"{verdict.abbreviation} {verdict.meaning}" for verdict in WORST_FIRST if summary.counts[verdict]]
    output.line("; ".join(seen), "dim")
    output.line()


def _show_finding(output: Output, finding: ReportedFinding) -> None:
    output.line(f"{finding.verdict}  {one_line(finding.title)}", finding.verdict.style)
    for trace in finding.traces:
        output.line(f"  trace      {one_line(trace)}")
    for row in finding.rows:
        figure = f"{figure_of(row)}; " if row.value is not None else ""
        said = shortened(one_line(detail_of(row)), 300)
        output.line(f"  {row.rule:<3} {row.verdict:<8} {one_line(figure)} {said}".rstrip())
    if finding.case and finding.case.diagnosis:
        output.line(f"  diagnosis  {shortened(one_line(finding.case.diagnosis), 600)}")
    if finding.case and finding.unexpected and (command := again(finding.case)):
        output.line(f"  rerun      {one_line(command)}")
    output.line()
