"""`fuzz`: look for faults that nobody has reported yet, in a buffer, a source, or a compiled decoder.

A line of progress while it hunts, then a row for each finding; `--json` gets findings as rows.
"""

from __future__ import annotations

import re
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from deepstack_harness.cli.arguments import add_removed, add_removed_adapter_options, add_source
from deepstack_harness.cli.output import progress
from deepstack_harness.contract.arm import ArmSpec
from deepstack_harness.contract.verdicts import Verdict
from deepstack_harness.document.blocks import BLANK, Column, Document, Line, TextTable, outcome, table_line
from deepstack_harness.engines.known import open_alone
from deepstack_harness.errors import ExitCode, UsageError
from deepstack_harness.files import store_hypothesis_in_cache
from deepstack_harness.fuzz.faults import Finding, FuzzRequest, Progress
from deepstack_harness.options import add_options, finite, record_of
from deepstack_harness.text import plural

if TYPE_CHECKING:
    from deepstack_harness.fuzz.campaign import Campaign, Hunted

EXAMPLES = 2000
"""Traces of a hunt, the same number for every seed; `--minutes` has another end."""
_NO_END = 10**7
"""Traces where the time is the limit: more than any machine plays in a day."""


def add_arguments(parser: ArgumentParser) -> None:
    """Add what is hunted on, how it is run, and for how long."""
    whose = parser.add_mutually_exclusive_group()
    add_source(whose, "test the buffer of this source")
    add_options(whose, FuzzRequest, "buffer", "revision")
    add_options(parser, FuzzRequest, "family", "arm")
    add_removed_adapter_options(parser)
    add_removed(parser, "--dtype", "state it in the 'fixed' of an adapter class; hunts draw other dtypes")
    add_removed(parser, "--backend", "name the backend in the arm, as in --arm inductor/drop_all")
    parser.add_argument(
        "--examples", type=int, metavar="N",
        help=f"number of traces (default {EXAMPLES}; with --minutes, as many as the time allows)",
    )  # fmt: skip
    parser.add_argument("--minutes", type=finite, metavar="M", help="stop after M minutes")
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="seed of the random traces (default 0)"
    )
    parser.add_argument(
        "--boundary",
        action="store_true",
        help="instead, try all small token counts and capacities, and random larger ones",
    )
    parser.add_argument("--out", metavar="DIR", help="folder for the findings (default reports/fuzz/...)")


def run(args: Namespace) -> Document[ExitCode]:
    """Exit 0 when nothing was found; 1 when something was, or the worker did not measure what it played."""
    store_hypothesis_in_cache()
    from deepstack_harness.fuzz.campaign import open_campaign, run_campaign, with_reach, write_findings

    campaign = _campaign(args)
    hunted = open_campaign(campaign)
    yield from _print_folder(campaign, hunted)
    with progress("starting") as say:
        run_campaign(
            campaign, hunted, lambda now, findings: say(status(now, campaign.examples, len(findings)))
        )
        findings = with_reach(hunted.findings, campaign.request)
    files = write_findings(campaign.folder, findings, campaign.request)
    yield from findings
    yield from show_findings(findings)
    yield Line(status(hunted.progress, campaign.examples, len(findings)))
    for file in files if findings else ():
        yield Line("wrote", command=str(file))
    return (yield from _print_verdict(hunted, f"{campaign.request.name} [{campaign.request.arm}]"))


def _campaign(args: Namespace) -> Campaign:
    from deepstack_harness.fuzz.campaign import Campaign, HuntLimits, boundary_examples

    request = record_of(FuzzRequest, args)
    request.target()  # refuses what is wrong before a worker starts and a folder is made
    if request.source:
        open_alone(request.source)
    count = args.examples if args.examples is not None else (_NO_END if args.minutes else EXAMPLES)
    if count < 1 or (args.minutes is not None and args.minutes <= 0):
        limit = f"--examples {count}" if count < 1 else f"--minutes {args.minutes:g}"
        raise UsageError(f"{limit} must be above 0")
    compiled = ArmSpec.parse(request.arm).compiled
    limits = HuntLimits(
        step_s=300.0 if compiled else 20.0, seconds=None if args.minutes is None else 60 * args.minutes
    )
    examples = boundary_examples() if args.boundary else count
    name = f"{request.name} {'' if request.arm == 'eager' else request.arm}"
    words = re.sub(r"[^A-Za-z0-9.]+", "-", name + (" boundary" if args.boundary else "")).strip("-")
    folder = Path(args.out or f"reports/fuzz/{words}-seed{args.seed}")
    return Campaign(request, folder, examples, args.seed, args.boundary, limits)


def _print_folder(campaign: Campaign, hunted: Hunted) -> Document:
    yield Line(
        f"findings are stored in {campaign.folder}; the same command continues a run that was interrupted"
    )
    if hunted.progress.examples:
        done = f"{plural(hunted.progress.examples, 'example')} and {plural(hunted.resumed, 'finding')}"
        yield Line(f"continuing an interrupted run after {done}")


def _print_verdict(hunted: Hunted, name: str) -> Document[ExitCode]:
    names = " ".join(sorted({finding.name for finding in hunted.findings}))
    if hunted.distrust:
        yield Line(hunted.distrust, Verdict.ERROR.style)
        yield outcome(f"{name}: {names or 'nothing'} found, which proves nothing", good=False)
        return ExitCode.BROKEN
    if hunted.findings:
        yield outcome(f"{name}: {names}", good=False)
        return ExitCode.BROKEN
    left = "" if hunted.complete else "; examples are left, the same command continues"
    yield outcome(f"{name}: nothing found{left}", good=True)
    return ExitCode.HOLDS


_COLUMNS = (
    Column("broken", 6), Column("example", 8, right=True), Column("seconds", 8, right=True),
    Column("reach", 9), Column("trace"),
)  # fmt: skip


def status(progress: Progress, examples: int, findings: int) -> str:
    """Return one line about the progress of a hunt."""
    graphs = f", {plural(progress.graphs, 'graph')} of {progress.budget}" if progress.budget else ""
    return (
        f"{progress.examples} of {examples} examples, {progress.steps} steps, "
        f"{progress.steps_per_second:.0f} steps/s, {plural(progress.states, 'state')}{graphs}, "
        f"{plural(findings, 'finding')}"
    )


def show_findings(findings: Sequence[Finding]) -> Document:
    """Print a row for each finding, and under it what was seen."""
    if not findings:
        return
    yield BLANK
    yield TextTable(_COLUMNS)
    for finding in findings:
        cells = (
            finding.name, str(finding.examples), f"{finding.seconds:.1f}", finding.reach or "", finding.trace,
        )  # fmt: skip
        yield table_line(_COLUMNS, cells, Verdict.FAIL.style)
        alone = "" if finding.alone is not False else " (only after the traces before it)"
        yield Line(f"        {finding.detail}{alone}", "dim")
    yield BLANK
