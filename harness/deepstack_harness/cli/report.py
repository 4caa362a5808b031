"""`report`: a run for people and for CI, from the files in its folder.

On the terminal: the matrix of verdicts, then the findings, then the summary.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from deepstack_harness.cli.output import progress, write_text
from deepstack_harness.contract.verdicts import UNEXPECTED, WORST_FIRST
from deepstack_harness.document.blocks import BLANK, NOTE, Details, Document, Line, outcome
from deepstack_harness.errors import ExitCode, UsageError
from deepstack_harness.runs.report.run_data import RunData, summarise, tested
from deepstack_harness.runs.report.tables import (
    Cell,
    case_findings,
    finding_blocks,
    heading_of,
    matrix_table,
    release_matrix,
    rerun_command,
    run_matrix,
    verdict_of,
)


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
        help="also show what changed since this run under another torch; may be repeated, the oldest first",
    )  # fmt: skip
    parser.add_argument(
        "--history", metavar="DIR", help="folder of earlier runs, which become trend lines in the page"
    )


def run(args: Namespace) -> Document[ExitCode]:
    """Exit 0 when the report was made, whatever the run found; `--json` gets the unexpected judgements."""
    from deepstack_harness.runs.report.run_data import load_run

    folder = Path(args.run)
    if not folder.is_dir():
        raise UsageError(f"'{args.run}' is not a folder; give one that 'run --out DIR' wrote")
    with progress(f"reading {args.run}"):
        run_data = load_run(folder, Path(args.history) if args.history else None, [*map(Path, args.against)])
    for row in run_data.rows:
        if row.verdict in UNEXPECTED:
            yield row
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
    return ExitCode.HOLDS


MOST_EXPECTED = 20
"""Expected failures that are listed; the unexpected ones always are."""
MOST_DETAIL = 600
"""Characters of a text of a finding."""


def show_run(run: RunData) -> Document:
    """Print the matrix, the findings and the notes; the closing line is the summary."""
    summary = summarise(run)
    for matrix in (run_matrix(run), release_matrix(run)):
        if matrix is not None and matrix.lines:
            yield matrix_table(matrix, _cell)
            yield BLANK
    meanings = [
        f"{verdict.abbreviation} {verdict.meaning}" for verdict in WORST_FIRST if summary.counts[verdict]
    ]
    yield Line("; ".join(meanings), "dim")
    yield BLANK
    findings = case_findings(run)
    unexpected = [rows for rows in findings if verdict_of(rows) in UNEXPECTED]
    expected = findings[len(unexpected) :]
    for rows in unexpected + expected[:MOST_EXPECTED]:
        verdict, command = verdict_of(rows), rerun_command(run.cases[rows[0].case])
        rerun = [Line("rerun:", command=command)] if command and verdict in UNEXPECTED else []
        summary_line = Line(f"{verdict} {heading_of(run, rows)}", verdict.style)
        yield Details(summary_line, [*finding_blocks(run, rows, MOST_DETAIL), *rerun])
        yield BLANK
    if len(expected) > MOST_EXPECTED:
        yield Line(
            f"and {len(expected) - MOST_EXPECTED} more cases broken as expected; --html FILE shows them"
        )
    if run.versions is not None:
        from deepstack_harness.cli.torches import show_versions

        yield from show_versions(run.versions)
        yield BLANK
    for note in run.notes:
        yield Line(f"note: {note}", NOTE)
    yield Line(f"{summary.progress}: {summary.expected}")
    yield Line(tested(run), "dim")
    yield outcome(summary.headline, good=summary.good)


def _cell(cell: Cell) -> str:
    times = f" {cell.times}" if cell.opened and cell.times > 1 else ""
    return cell.verdict.abbreviation + times
