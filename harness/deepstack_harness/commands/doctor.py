"""`doctor`: what this machine can run, and why not."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from deepstack_harness.errors import ExitCode
from deepstack_harness.reporting.terminal.output import Column, Output

SUMMARY = "show what this machine can run, and why it cannot run the rest"
_COLUMNS = (Column(16), Column(3), Column(0))


def add_arguments(parser: ArgumentParser) -> None:
    """Add nothing beyond the common options."""


def run(_args: Namespace, output: Output) -> ExitCode:
    """Exit 0 when `repro 43602` can run here on the CPU, 3 when something it needs is missing."""
    from deepstack_harness.machine.checks import examine

    missing = []
    for finding in examine():
        here = "yes" if finding.here else "no"
        output.row(_COLUMNS, [finding.what, here, finding.found], "" if finding.here else "yellow")
        output.record(finding)
        if finding.needed and not finding.here:
            missing.append(finding.what)
    if missing:
        output.verdict(f"cannot run 'repro 43602': {', '.join(missing)} missing", good=False)
        return ExitCode.MACHINE
    output.verdict("can run 'repro 43602' on the CPU", good=True)
    return ExitCode.HOLDS
