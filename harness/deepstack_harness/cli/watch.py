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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deepstack_harness.cli.output import Output, say, write_text
from deepstack_harness.compile.watch_process import (
    Unreached,
    WatchedProcess,
    dropped_by_kind,
    failed_guards,
    read_processes,
    start_in_children,
)
from deepstack_harness.errors import ExitCode, UsageError
from deepstack_harness.text import plural

_MOST_RESTORED = 8
"""The program is run again for so many guards at most."""


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument(
        "--fail-on", choices=("failed", "effect"), default="failed",
        help="failed: a guard that decides failed, and was not measured to have no effect (default); "
        "effect: answers were measured to differ, and 3 where a guard that decides was not measured",
    )  # fmt: skip
    parser.add_argument("--html", metavar="FILE", help="also write one page without a network")
    parser.add_argument(
        "--restore", action="store_true",
        help=f"run the program again with each failed guard put back, {_MOST_RESTORED} at most, and tell "
        "which one changes the answers; for programs that can be run again",
    )  # fmt: skip
    parser.add_argument(
        "program", metavar="-- COMMAND", nargs=REMAINDER,
        help="the program with its arguments, behind '--'; its own exit status is returned where it is not 0",
    )  # fmt: skip


@dataclass(frozen=True)
class WatchedRun:
    """One run of a program: its status, its processes, and the processes that were not watched by command."""

    status: int
    processes: Sequence[WatchedProcess]
    unreached: dict[int, str]

    @property
    def regions(self) -> list[dict[str, Any]]:
        """The regions of all processes."""
        return [region for process in self.processes for region in process.regions.values()]

    @property
    def decisive(self) -> list[tuple[WatchedProcess, dict[str, Any], dict[str, Any]]]:
        """Each failed guard that decides, with its process and region."""
        return [each for each in failed_guards(self.processes) if each[2]["counts"]]

    @property
    def unwatched(self) -> list[str]:
        """A sentence for everything that was not watched."""
        return list(self._unwatched())

    def _unwatched(self) -> Iterator[str]:
        for region in self.regions:
            if region["uncompiled"] and region["problem"]:
                yield f"{region['problem']}; {_calls_as_written(region)}"
        compiling = [process for process in self.processes if process.compiles]
        if all(region["uncompiled"] for region in self.regions):
            yield (
                f"nothing watched: {plural(len(compiling), 'process')} loaded torch.compile, and no region "
                f"was compiled (the program ended with {self.status})"
            )
        for pid, command in self.unreached.items():
            yield f"process {pid} loaded torch and was not reached: {command}"
        for process in self.processes:
            yield from (f"process {process.pid}: {problem}" for problem in process.problems)
        for region in self.regions:
            if region["uncompiled"]:
                continue
            if region["unseen"]:
                yield (
                    f"{region['name']} ({region['where']}): inputs not visible in {region['unseen']} of "
                    f"{plural(region['calls'], 'replay')}: no callable around them is marked"
                )
            if region["problem"]:
                yield f"{region['name']}: the guards could not be asked in {region['problem']}"
            elif not (region["kept"] or region["dropped"] or region["captured"]):
                yield f"{region['name']} ({region['where']}) has no guards that could be asked"


def run(args: Namespace, output: Output) -> ExitCode | int:
    """Run the program to its end; the report comes last, also where a signal ends it.

    Returns the program's own status where that is not 0; else 1 where a guard that decides failed, 3 where
    not everything was watched, and 0.
    """
    command = args.program[1:] if args.program[:1] == ["--"] else args.program
    if not command:
        raise UsageError("name the program to watch: deepstack-harness watch -- python serve.py")
    if args.html:
        write_text(args.html, "")  # a bad path costs no work
    watched = _watched_run(command)
    _report(watched, output)
    restored = _restore(command, watched, output) if args.restore and not watched.status else []
    if args.html:
        from deepstack_harness.runs.report.watch_page import render_watch

        write_text(args.html, render_watch(command, watched, restored))
    return watched.status or _code(watched, args.fail_on)


def _code(watched: WatchedRun, fail_on: str) -> ExitCode:
    has_effect = [guard["has_effect"] for _, _, guard in watched.decisive]
    if any(has_effect) if fail_on == "effect" else has_effect:
        return ExitCode.BROKEN
    # A guard that decides and was not measured is in doubt where the effect is asked for.
    return ExitCode.MACHINE if has_effect or watched.unwatched else ExitCode.HOLDS


def _watched_run(command: Sequence[str], restored: Sequence[str] = ()) -> WatchedRun:
    with tempfile.TemporaryDirectory(prefix="deepstack-watch-") as name:
        folder = Path(name)
        environment = start_in_children(folder, os.environ, restored)
        with Unreached(folder) as unreached:
            status = _run_program(command, environment)
        return WatchedRun(status, read_processes(folder), unreached.found)


def _run_program(command: Sequence[str], environment: dict[str, str]) -> int:
    """Return the status of the program; a signal of number n is 128 + n."""
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


def _report(watched: WatchedRun, output: Output) -> None:
    for process, region, guard in watched.decisive:
        output.line(sentence(process, region, guard))
    for process in watched.processes:
        for region in process.regions.values():
            output.record({"pid": process.pid, "rank": process.rank, "ended": process.ended, **region})
    if watched.regions:
        compiling = [process for process in watched.processes if process.compiles]
        kinds = dropped_by_kind(watched.processes).most_common(6)
        output.line(
            f"{plural(len(compiling), 'process')}, {plural(len(watched.regions), 'region')}, "
            f"{plural(sum(region['calls'] for region in watched.regions), 'call')}; dropped guards: "
            f"{', '.join(f'{count} {kind}' for kind, count in kinds) or 'none'}; "
            f"failed and decide: {len(watched.decisive) or 'none'}"
        )
    for process in watched.processes:
        for region in process.regions.values():
            if region["uncompiled"] and not region["problem"]:
                output.line(f"{_calls_as_written(region)}: {region['uncompiled']} (process {process.pid})")
        for text in process.engines.values():
            output.line(f"process {process.pid} is {text}")
        if process.compiles and not process.ended:
            output.line(
                f"process {process.pid} did not come to its end: its counts and findings are here, the last "
                "inputs are missing"
            )
    for text in watched.unwatched:
        say(f"deepstack-harness: {text}")


def _calls_as_written(region: dict[str, Any]) -> str:
    return f"{region['name']} ({region['where']}) ran uncompiled in {plural(region['calls'], 'call')}"


def sentence(process: WatchedProcess, region: dict[str, Any], guard: dict[str, Any]) -> str:
    """Return one failed guard as a stranger understands it, with its process and rank."""
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


def _restore(command: Sequence[str], watched: WatchedRun, output: Output) -> list[dict[str, Any]]:
    """Run the program again with one guard put back; return for each guard what still fails then."""
    sources = list(dict.fromkeys(guard["restored_by"] for _, _, guard in watched.decisive))
    restored = []
    for source in sources[:_MOST_RESTORED]:
        again = _watched_run(command, [source])
        left = list(dict.fromkeys(guard["restored_by"] for _, _, guard in again.decisive))
        row = {"restored": source, "status": again.status, "still_failing": left}
        restored.append(row)
        output.record(row)
        output.line(f"{source} put back: {_after_restoring(source, again.status, left)}")
    if len(sources) > _MOST_RESTORED:
        say(f"deepstack-harness: {len(sources) - _MOST_RESTORED} further guards were not put back")
    return restored


def _after_restoring(source: str, status: int, left: Sequence[str]) -> str:
    if status:
        return f"the program ended with {status}, and with 0 without it: nothing is known of its answers"
    if source in left:
        return "it still fails, so this guard was not what torch asks"
    changes = "torch compiles again where it fails, and the answers are right"
    return f"{changes}; still failing: {', '.join(left)}" if left else f"{changes} in all calls"
