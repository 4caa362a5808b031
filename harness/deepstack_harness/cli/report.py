"""`report`: a run for people and for CI, from the files in its folder.

On the terminal: the matrix of verdicts, then the findings, then the summary.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from deepstack_harness.cli.output import progress, write_text
from deepstack_harness.contract.verdicts import WORST_FIRST, worst
from deepstack_harness.document.blocks import BLANK, Column, Document, Line, outcome, table_line
from deepstack_harness.document.shown import shown
from deepstack_harness.errors import ExitCode, UsageError
from deepstack_harness.runs.report.run_data import RunData, Summary, summarise, tested
from deepstack_harness.runs.report.tables import (
    Cell,
    Matrix,
    ReportedFinding,
    case_findings,
    detail_of,
    release_matrix,
    rerun_command,
    run_matrix,
)
from deepstack_harness.text import one_line, shortened


def add_arguments(parser: ArgumentParser) -> None:
    """Add the run's folder, and what is written of it."""
    parser.add_argument("run", metavar="RUN", help="the folder that 'run --out' wrote; a killed run is fine")
    parser.add_argument(
        "--html", metavar="FILE", help="write one self-contained page, which needs no network"
    )
    parser.add_argument(
        "--markdown", metavar="FILE", help='write Markdown; for a GitHub job summary: "$GITHUB_STEP_SUMMARY"'
    )
    parser.add_argument(
        "--junit", metavar="FILE", help="write JUnit XML with one test case for each judgement"
    )
    parser.add_argument("--annotations", action="store_true", help="print GitHub annotations")
    parser.add_argument(
        "--against", action="append", default=[], metavar="RUN",
        help="also tell what changed since this run under another torch; may be repeated, the oldest first",
    )  # fmt: skip
    parser.add_argument(
        "--history", metavar="DIR", help="folder of earlier runs, which become trend lines in the page"
    )


def run(args: Namespace) -> Document[ExitCode]:
    """Exit 0 when the report was made, whatever the run found; `--json` gets the unexpected judgements."""
    from deepstack_harness.contract.verdicts import UNEXPECTED
    from deepstack_harness.runs.report.run_data import load_run

    folder = Path(args.run)
    if not folder.is_dir():
        raise UsageError(f"'{args.run}' is not a folder; give one that 'run --out DIR' wrote")
    with progress(f"reading {args.run}"):
        run_data = load_run(folder, Path(args.history) if args.history else None, [*map(Path, args.against)])
    for row in run_data.rows:
        if row.verdict in UNEXPECTED:
            yield row
    yield from _write_files(args, run_data)
    return ExitCode.HOLDS


def _write_files(args: Namespace, run_data: RunData) -> Document:
    """Write the files that were asked for; print the terminal's report where nothing was."""
    if args.html:
        from deepstack_harness.runs.report.page import render_page

        write_text(args.html, render_page(run_data))
        yield Line(f"wrote {args.html}, a page for a browser: {summarise(run_data).headline}")
    if args.markdown:
        from deepstack_harness.runs.report.texts import render_markdown

        write_text(args.markdown, render_markdown(run_data))
        yield Line("wrote", command=args.markdown)
    if args.junit:
        from deepstack_harness.runs.report.junit import render_junit

        write_text(args.junit, render_junit(run_data))
        yield Line("wrote", command=args.junit)
    if args.annotations:
        from deepstack_harness.runs.report.texts import annotations

        for command in annotations(run_data):
            yield Line(command=command)
    if not (args.html or args.markdown or args.junit or args.annotations):
        yield from show_run(run_data)


MOST_EXPECTED = 20
"""Expected failures that are listed; the unexpected ones always are."""


def show_run(run: RunData) -> Document:
    """Print the matrix, the findings and the notes; the closing line is the summary."""
    summary = summarise(run)
    yield from _show_matrix(run_matrix(run))
    if (releases := release_matrix(run)) is not None:
        yield from _show_matrix(releases)
    yield from _legend(summary)
    findings = case_findings(run)
    expected = [finding for finding in findings if not finding.unexpected]
    unexpected = [finding for finding in findings if finding.unexpected]
    for finding in unexpected + expected[:MOST_EXPECTED]:
        yield from _show_finding(finding)
    if len(expected) > MOST_EXPECTED:
        yield Line(
            f"and {len(expected) - MOST_EXPECTED} more cases broken as expected; --html FILE shows them"
        )
    if run.versions is not None:
        from deepstack_harness.cli.torches import show_versions

        yield from show_versions(run.versions)
        yield BLANK
    for note in run.notes:
        yield Line(f"note: {note}", "yellow")
    yield Line(f"{summary.progress}: {summary.expected}")
    yield Line(tested(run), "dim")
    yield outcome(summary.headline, good=summary.good)


def _show_matrix(matrix: Matrix) -> Document:
    if not matrix.lines:
        return
    widths = [max(len(line.names[place]) for line in matrix.lines) for place in range(len(matrix.heads))]
    columns = [Column(width=max(width, len(head))) for width, head in zip(widths, matrix.heads, strict=True)]
    columns += [Column(width=7, right=True) for _ in matrix.rules]
    yield table_line(columns, [*matrix.heads, *matrix.rules], "dim")
    for line in matrix.lines:
        cells = [*map(one_line, line.names), *map(_cell, line.cells)]
        yield table_line(columns, cells, worst(line.verdicts).style)
    yield BLANK


def _cell(cell: Cell | None) -> str:
    if cell is None:
        return ""
    times = f" {cell.times}" if cell.opened and cell.times > 1 else ""
    return cell.verdict.abbreviation + times


def _legend(summary: Summary) -> Document:
    """Print the meaning of the verdicts that are there."""
    seen = [f"{verdict.abbreviation} {verdict.meaning}" for verdict in WORST_FIRST if summary.counts[verdict]]
    yield Line("; ".join(seen), "dim")
    yield BLANK


def _show_finding(finding: ReportedFinding) -> Document:
    yield Line(f"{finding.verdict}  {one_line(finding.title)}", finding.verdict.style)
    for trace in finding.traces:
        yield Line(f"  trace      {one_line(trace)}")
    for row in finding.rows:
        figure = f"{shown(row).measured}; " if row.value is not None else ""
        detail = shortened(one_line(detail_of(row)), 300)
        yield Line(f"  {row.rule:<3} {row.verdict:<8} {one_line(figure)} {detail}".rstrip())
    if finding.case and finding.case.diagnosis:
        yield Line(f"  diagnosis  {shortened(one_line(finding.case.diagnosis), 600)}")
    if finding.case and finding.unexpected and (command := rerun_command(finding.case)):
        yield Line(f"  rerun      {one_line(command)}")
    yield BLANK
