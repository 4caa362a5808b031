"""`compare`: what changed between two runs, and over the runs before them."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from deepstack_harness.cli.arguments import add_removed
from deepstack_harness.cli.output import Column, Output
from deepstack_harness.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from deepstack_harness.runs.compare import Change
    from deepstack_harness.runs.store import StoredRun


_SLOWEST = 3


def add_arguments(parser: ArgumentParser) -> None:
    """Add the two runs, and what they are held against."""
    parser.add_argument("old", metavar="OLD", help="the folder of the earlier run")
    parser.add_argument("new", metavar="NEW", help="the folder of the later run")
    parser.add_argument(
        "--history", metavar="DIR",
        help="also look for changes over these runs: a folder of runs, or a hub dataset OWNER/NAME",
    )  # fmt: skip
    add_removed(parser, "--threshold", "every change is shown; leave some out by reading the rows of --json")


def run(args: Namespace, output: Output) -> ExitCode:
    """Exit 0 when nothing is worse, better or missing (new rows are fine), 1 otherwise."""
    from deepstack_harness.runs.compare import RED, compare
    from deepstack_harness.runs.store import read_stored

    old, new = read_stored(args.old), read_stored(args.new)
    for folder, stored in ((args.old, old), (args.new, new)):
        if stored.mixed:
            raise UsageError(
                f"'{folder}' is not one run: {stored.mixed}; a difference would say nothing: play it again "
                "in one environment"
            )
    changes = compare(old, new, _history(args, output, (old, new)))
    for change in changes:
        output.record(change)
    _show(output, changes)
    _show_seconds(output, old, new)
    red = [change for change in changes if change.kind in RED]
    counts = Counter(change.kind for change in changes)
    summary = ", ".join(f"{number} {kind}" for kind, number in counts.items()) or "nothing changed"
    output.verdict(summary, good=not red)
    return ExitCode.BROKEN if red else ExitCode.HOLDS


def _history(args: Namespace, output: Output, pair: Sequence[StoredRun]) -> list[StoredRun]:
    """Return the runs of the history but for the two that are compared."""
    if not args.history:
        return []
    from deepstack_harness.runs.frames import read_history

    runs, notes = read_history(args.history)
    for note in notes:
        output.line(note, "yellow")
    return [run for run in runs if run.started not in {stored.started for stored in pair}]


def _show(output: Output, changes: Sequence[Change]) -> None:
    columns = [Column(11), Column(11), Column(24), Column(0)]
    if changes:
        output.row(columns, ["change", "of", "before -> now", "where"], "dim")
    for change in changes:
        style = {"regression": "red", "missing": "red", "improvement": "yellow"}.get(change.kind, "")
        since = "" if change.since == "OLD" else f" (since {change.since})"
        cells = [change.kind, change.metric, f"{change.before} -> {change.after}", change.where + since]
        output.row(columns, cells, style)


def _show_seconds(output: Output, old: StoredRun, new: StoredRun) -> None:
    from deepstack_harness.runs.compare import seconds

    both = seconds(old, new)
    before, now = sum(earlier for _, earlier, _ in both), sum(later for *_, later in both)
    if before:
        output.line(
            f"time, not judged: {now:.1f} s for {len(both)} cases in both runs, {before:.1f} s before"
        )
    for where, earlier, later in both[:_SLOWEST]:
        if later > earlier:
            output.line(f"  {later:.2f} s, before {earlier:.2f} s: {where}", "dim")
