"""`fuzz`: look for faults that nobody has reported yet, in a buffer, a source, or a compiled decoder."""

from __future__ import annotations

import os
import re
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from deepstack_harness.catalogue.data_files import hypothesis_storage
from deepstack_harness.commands.arguments import finite
from deepstack_harness.commands.source_arguments import add_source
from deepstack_harness.contract.arm_spec import ArmSpec
from deepstack_harness.contract.plural import plural
from deepstack_harness.engines.known import open_alone
from deepstack_harness.errors import ExitCode, UsageError
from deepstack_harness.reporting.terminal.output import Output

if TYPE_CHECKING:
    from deepstack_harness.fuzzing.campaign import Campaign, Hunted

SUMMARY = "search for broken rules with random token counts and lifecycles; shrink each finding"
EXAMPLES = 2000
_NO_END = 10**7


def add_arguments(parser: ArgumentParser) -> None:
    """Add what is hunted on, how it is run, and for how long."""
    whose = parser.add_mutually_exclusive_group()
    add_source(whose, "test the buffer of this source")
    whose.add_argument("--buffer", metavar="MODULE:CLASS", help="test a buffer class of your own")
    whose.add_argument("--revision", metavar="R", help="test this revision or mutant (default reference)")
    parser.add_argument(
        "--family",
        default="qwen3_vl",
        metavar="F",
        help="model family, see 'list families' (default qwen3_vl)",
    )
    parser.add_argument(
        "--arm", default="eager", metavar="A",
        help="eager (default), which plays the buffer alone, or another arm of 'list arms'",
    )  # fmt: skip
    parser.add_argument(
        "--backend", metavar="B", help="backend of the arm, as in --arm drop_all --backend inductor"
    )
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


def run(args: Namespace, output: Output) -> ExitCode:
    """Exit 0 when nothing was found, 1 when something was."""
    os.environ.update(hypothesis_storage())
    from deepstack_harness.fuzzing.campaign import carry_on, start
    from deepstack_harness.fuzzing.finding_files import with_reach, write_found
    from deepstack_harness.reporting.terminal.fuzz_table import row_of, show_findings, status

    campaign = _campaign(args)
    hunted = start(campaign)
    _say_where(output, campaign, hunted)
    with output.progress("starting") as say:
        carry_on(campaign, hunted, lambda now, found: say(status(now, campaign.examples, len(found))))
        found = with_reach(hunted.findings, campaign.asked)
    files = write_found(campaign.folder, found, campaign.asked)
    for one in found:
        output.record(row_of(one, hunted.torch))
    show_findings(output, found)
    output.line(status(hunted.progress, campaign.examples, len(found)))
    for file in files if found else ():
        output.line(f"wrote {file}")
    return _close(output, hunted, f"{campaign.asked.name} [{campaign.asked.arm}]")


def _campaign(args: Namespace) -> Campaign:
    from deepstack_harness.fuzzing.boundary import questions
    from deepstack_harness.fuzzing.campaign import Campaign, HuntLimits
    from deepstack_harness.fuzzing.request import FuzzRequest

    asked = FuzzRequest(args.source, args.buffer, args.revision, _arm(args), args.family)
    asked.target()  # refuses what is wrong before a worker starts and a folder is made
    if asked.source:
        open_alone(asked.source)
    played = args.examples if args.examples is not None else (_NO_END if args.minutes else EXAMPLES)
    if played < 1 or (args.minutes is not None and args.minutes <= 0):
        raise UsageError(f"{_limit(args)} must be above 0")
    compiled = ArmSpec.parse(asked.arm).compiled
    limits = HuntLimits(
        step_s=300.0 if compiled else 20.0, seconds=None if args.minutes is None else 60 * args.minutes
    )
    examples = questions() if args.boundary else played
    folder = Path(args.out or _folder(asked.name, asked.arm, args))
    return Campaign(asked, folder, examples, args.seed, args.boundary, limits)


def _limit(args: Namespace) -> str:
    """Return the option that is not above 0, with its value."""
    return (
        f"--examples {args.examples}"
        if args.examples is not None and args.examples < 1
        else f"--minutes {args.minutes:g}"
    )


def _arm(args: Namespace) -> str:
    """Return the arm: `--arm drop_all --backend inductor` is `inductor/drop_all`."""
    name = f"{args.backend}/{args.arm}" if args.backend else args.arm
    return ArmSpec.parse(name).name


def _folder(name: str, arm: str, args: Namespace) -> str:
    words = [name, *([] if arm == "eager" else [arm]), *(["boundary"] if args.boundary else [])]
    return f"reports/fuzz/{re.sub(r'[^A-Za-z0-9.]+', '-', ' '.join(words)).strip('-')}-seed{args.seed}"


def _say_where(output: Output, campaign: Campaign, hunted: Hunted) -> None:
    output.line(
        f"findings are kept in {campaign.folder}; the same command continues a run that was interrupted"
    )
    if hunted.progress.examples:
        done = f"{plural(hunted.progress.examples, 'example')} and {plural(hunted.resumed, 'finding')}"
        output.line(f"continuing an interrupted run after {done}")


def _close(output: Output, hunted: Hunted, what: str) -> ExitCode:
    names = " ".join(sorted({one.name for one in hunted.findings}))
    if hunted.findings:
        output.verdict(f"{what}: {names}", good=False)
        return ExitCode.BROKEN
    left = "" if hunted.complete else "; examples are left, the same command continues"
    output.verdict(f"{what}: nothing found{left}", good=True)
    return ExitCode.HOLDS
