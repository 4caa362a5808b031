"""`watch -- COMMAND ..`: run a program, and tell which dropped guards fail in its compiled regions."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from argparse import REMAINDER, ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from deepstack_harness.cli.output import Output, say
from deepstack_harness.compile.watch_process import (
    WatchedProcess,
    decisive_guards,
    dropped_by_kind,
    read_processes,
    start_in_children,
)
from deepstack_harness.errors import ExitCode, UsageError
from deepstack_harness.text import plural


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument(
        "program", metavar="-- COMMAND", nargs=REMAINDER,
        help="the program with its arguments, behind '--'; its own exit status is returned where it is not 0",
    )  # fmt: skip


def run(args: Namespace, output: Output) -> ExitCode | int:
    """Run the program to its end; the report comes last, also where a signal ends it.

    Returns the program's own status where that is not 0; else 1 where a guard that decides failed, 3 where
    nothing was watched, or a process did not come to its end, and 0.
    """
    command = args.program[1:] if args.program[:1] == ["--"] else args.program
    if not command:
        raise UsageError("name the program to watch: deepstack-harness watch -- python serve.py")
    with tempfile.TemporaryDirectory(prefix="deepstack-watch-") as folder:
        status = _run_program(command, Path(folder))
        processes = read_processes(Path(folder))
    code = _report(processes, status, output)
    return status or code


def _run_program(command: Sequence[str], folder: Path) -> int:
    """Return the status of the program; a signal of number n is 128 + n."""
    environment = start_in_children(folder, os.environ)
    try:
        with subprocess.Popen(command, env=environment) as running, _forwarding(running):
            status = running.wait()
    except OSError as error:
        raise UsageError(f"cannot run '{command[0]}': {error.strerror}") from None
    return 128 - status if status < 0 else status


@contextmanager
def _forwarding(running: subprocess.Popen[bytes]) -> Iterator[None]:
    """Send SIGINT and SIGTERM on to the program; the report is written when it has ended."""

    def forward(number: int, _frame: object) -> None:
        # Ctrl-C reaches the whole foreground group by itself; a second one in the program would cut its end.
        if number != signal.SIGINT or not sys.stdin.isatty():
            running.send_signal(number)

    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, forward) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _report(processes: Sequence[WatchedProcess], status: int, output: Output) -> ExitCode:
    decisive = list(decisive_guards(processes))
    for process, region, guard in decisive:
        output.line(_sentence(process, region, guard))
    regions = [region for process in processes for region in process.regions.values()]
    for process in processes:
        for region in process.regions.values():
            output.record(
                {"pid": process.pid, "rank": process.rank, "ended": process.ended, **region,
                 "failed": list(region["failed"].values())}
            )  # fmt: skip
    if not regions:
        say(
            f"deepstack-harness: nothing watched: {plural(len(processes), 'process')} loaded torch.compile, "
            f"and no region was compiled (the program ended with {status})"
        )
        return ExitCode.MACHINE
    kinds = ", ".join(f"{count} {kind}" for kind, count in dropped_by_kind(processes).most_common(6))
    calls = sum(region["calls"] for region in regions)
    output.line(
        f"{plural(len(processes), 'process')}, {plural(len(regions), 'region')}, "
        f"{plural(calls, 'call')}; dropped guards: {kinds or 'none'}; "
        f"failed and decide: {len(decisive) or 'none'}"
    )
    cut = [process for process in processes if not process.ended]
    for process in cut:
        output.line(f"process {process.pid} did not come to its end: its last calls are not counted")
    unasked = [region for region in regions if region["problem"]]
    for region in unasked:
        output.line(f"{region['name']}: the guards could not be asked in {region['problem']}")
    unseen = [region for region in regions if region["unseen"]]
    for region in unseen:
        output.line(
            f"{region['name']} ({region['where']}): inputs not visible in {region['unseen']} of "
            f"{plural(region['calls'], 'replay')}: no callable around them is marked"
        )
    if decisive:
        return ExitCode.BROKEN
    return ExitCode.MACHINE if cut or unasked or unseen else ExitCode.HOLDS


def _sentence(process: WatchedProcess, region: dict[str, Any], guard: dict[str, Any]) -> str:
    who = f"process {process.pid}" + (f", rank {process.rank}" if process.rank else "")
    if region["captured"]:
        return (
            f"{region['name']}: `{guard['name']}` was {guard['then']} when captured, and {guard['now']} in "
            f"{guard['calls']} of {plural(region['calls'], 'replay')}; a replay reads what was captured "
            f"({who})"
        )
    return (
        f"{region['name']}: `{guard['name']}` was {guard['then']} when compiled, and {guard['now']} in "
        f"{guard['calls']} of {plural(region['calls'], 'call')}; the guard '{guard['rule']}' "
        f"({guard['where'] or region['where']}) was dropped, so the graph computes as it was traced; "
        f"{guard['effect']} ({who})"
    )
