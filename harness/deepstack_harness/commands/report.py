"""`report`: a run for people and for CI, from the files in its folder."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from deepstack_harness.errors import ExitCode, UsageError
from deepstack_harness.reporting.json_lines import write_text
from deepstack_harness.reporting.terminal.output import Output

if TYPE_CHECKING:
    from deepstack_harness.reporting.run_data import RunData

SUMMARY = "show a run as a terminal table, an HTML page, Markdown, GitHub annotations or JUnit XML"


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
        "--history", metavar="DIR", help="folder of earlier runs, which become trend lines in the page"
    )


def run(args: Namespace, output: Output) -> ExitCode:
    """Exit 0 when the report was made, whatever the run found; `--json` gets the unexpected judgements."""
    from deepstack_harness.contract.verdicts import UNEXPECTED
    from deepstack_harness.reporting.loading import load_run

    folder = Path(args.run)
    if not folder.is_dir():
        raise UsageError(f"'{args.run}' is not a folder; give one that 'run --out DIR' wrote")
    with output.progress(f"reading {args.run}"):
        found = load_run(folder, Path(args.history) if args.history else None)
    for row in found.rows:
        if row.verdict in UNEXPECTED:
            output.record(row)
    _write(args, output, found)
    return ExitCode.HOLDS


def _write(args: Namespace, output: Output, found: RunData) -> None:
    """Write the files that were asked for; print the terminal's report where nothing was."""
    if args.html:
        from deepstack_harness.reporting.page import render_page

        write_text(args.html, render_page(found))
    if args.markdown:
        from deepstack_harness.reporting.markdown import render_markdown

        write_text(args.markdown, render_markdown(found))
    if args.junit:
        from deepstack_harness.reporting.junit import render_junit

        write_text(args.junit, render_junit(found))
    if args.annotations:
        from deepstack_harness.reporting.annotations import annotations

        for line in annotations(found):
            output.line(line)
    if not (args.html or args.markdown or args.junit or args.annotations):
        from deepstack_harness.reporting.terminal.run_table import show_run

        show_run(output, found)
