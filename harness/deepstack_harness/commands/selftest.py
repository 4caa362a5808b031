"""`selftest`: show that the harness finds the faults that are there, and only those."""

from __future__ import annotations

import os
import time
from argparse import ArgumentParser, Namespace

from deepstack_harness.catalogue.data_files import hypothesis_storage
from deepstack_harness.catalogue.mutants import ALL_MUTANTS
from deepstack_harness.contract.plural import plural
from deepstack_harness.errors import ExitCode, UsageError, unknown_name
from deepstack_harness.reporting.terminal.output import Output

SUMMARY = "check that each mutant is caught by its own rule alone, and that right buffers break none"


def add_arguments(parser: ArgumentParser) -> None:
    """Add which mutants, and how long to hunt."""
    parser.add_argument(
        "mutants", nargs="*", metavar="MUTANT", help="names as in 'list mutants' (default: all)"
    )
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="seed of the random traces (default 0)"
    )
    parser.add_argument(
        "--workers", type=int, default=min(2, os.cpu_count() or 1), metavar="N",
        help="worker processes (default 2, on one core 1); 0 plays in this process",
    )  # fmt: skip


def run(args: Namespace, output: Output) -> ExitCode:
    """Exit 0 when all mutants are caught by exactly their rule and right buffers are clean, else 1."""
    os.environ.update(hypothesis_storage())
    from deepstack_harness.reporting.terminal.selftest_table import SelftestTable
    from deepstack_harness.selftest.pool import prove
    from deepstack_harness.selftest.trials import trials_for

    _check(args)
    start = time.perf_counter()
    table = SelftestTable(output)
    trials = trials_for(args.mutants or ALL_MUTANTS, args.seed, right=not args.mutants)
    with output.progress(f"0 of {len(trials)} hunts") as say:
        for number, proof in enumerate(prove(trials, args.workers), 1):
            table.show(proof)
            say(f"{number} of {plural(len(trials), 'hunt')}")
    return ExitCode.HOLDS if table.close(time.perf_counter() - start) else ExitCode.BROKEN


def _check(args: Namespace) -> None:
    for name in args.mutants:
        if name not in ALL_MUTANTS:
            raise unknown_name("mutant", name, ALL_MUTANTS, f"the {len(ALL_MUTANTS)} of 'list mutants'")
    if args.workers < 0:
        raise UsageError(f"--workers {args.workers}: the number of processes must be 0 or more")
