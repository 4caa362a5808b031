"""`watch -- COMMAND ..`: run a program, and list the dropped guards that fail in its compiled regions."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from argparse import REMAINDER, ArgumentParser, Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deepstack_harness.cli.output import say, write_text
from deepstack_harness.compile.watch_process import (
    Unreached,
    WatchedProcess,
    failed_guards,
    read_processes,
    start_in_children,
)
from deepstack_harness.compile.watch_text import finding_text, findings, region_lines, to_do, words_of
from deepstack_harness.document.blocks import Document, Line
from deepstack_harness.errors import ExitCode, UsageError
from deepstack_harness.text import plural

_LONGEST_COMMAND = 100
"""Characters of a command that are shown."""
_MOST_RESTORED = 8
"""The program is run again for so many guards at most."""


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument(
        "--fail-on", choices=("failed", "effect"), default="failed",
        help="failed: a guard that decides failed, and was not measured to have no effect (default); "
        "effect: outputs were measured to differ, and 3 where a guard that decides was not measured",
    )  # fmt: skip
    parser.add_argument("--html", metavar="FILE", help="also write one page without a network")
    parser.add_argument(
        "--restore", action="store_true",
        help=f"run the program again with each failed guard put back, {_MOST_RESTORED} at most, and show "
        "which one changes the output; for programs that can be run again",
    )  # fmt: skip
    parser.add_argument(
        "program", metavar="-- COMMAND", nargs=REMAINDER,
        help="the program with its arguments, after '--'; its own exit status is returned where it is not 0",
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
        return [guard for guard in failed_guards(self.processes) if guard[2]["counts"]]

    @property
    def unwatched(self) -> list[str]:
        """A sentence for everything that was not watched."""
        sentences = [
            f"{region['problem']}; {_calls_as_written(region)}"
            for region in self.regions
            if region["uncompiled"] and region["problem"]
        ]
        if all(region["uncompiled"] for region in self.regions):
            compiling = plural(sum(process.compiles for process in self.processes), "process")
            ended = f"(the program ended with {self.status})"
            sentences.append(
                f"nothing watched: {compiling} loaded torch.compile, and no region was compiled {ended}"
            )
        for pid, command in self.unreached.items():
            words = words_of(command, _LONGEST_COMMAND)
            sentences.append(f"process {pid} loaded torch and was not reached: {words}")
        for process in self.processes:
            sentences += [f"process {process.pid}: {problem}" for problem in process.problems]
        for region in self.regions:
            if not region["uncompiled"]:
                sentences += _unwatched_of(region)
        return sentences


def _unwatched_of(region: Mapping[str, Any]) -> Iterator[str]:
    """Yield a sentence for each part of a region that was not watched."""
    if region["unseen"]:
        yield (
            f"{region['name']} ({region['where']}): inputs not visible in {region['unseen']} of "
            f"{plural(region['calls'], 'replay')}: no callable around them is marked"
        )
    if region["problem"]:
        yield f"{region['name']}: the guards could not be evaluated in {region['problem']}"
    elif not (region["kept"] or region["dropped"] or region["captured"]):
        yield f"{region['name']} ({region['where']}) has no guards that could be evaluated"
    if region["unlisted"]:
        yield f"{region['name']}: {region['unlisted']} further failures of guards are not listed"
    for guard in region["failed"]:
        if guard["in_doubt"]:
            yield (
                f"{region['name']}: `{guard['name']}` was {guard['then']} when compiled, and is "
                f"{guard['now']}; {guard['effect']}"
            )


def run(args: Namespace) -> Document[ExitCode | int]:
    """Run the program to its end; the report comes last, also where a signal ends it.

    Returns the program's own status where that is not 0; else 1 where a guard that decides failed, 3 where
    not everything was watched, and 0.
    """
    command = args.program[1:] if args.program[:1] == ["--"] else args.program
    if not command:
        raise UsageError("name the program to watch: deepstack-harness watch -- python serve.py")
    if args.html:
        write_text(args.html, "")  # a bad path costs no work
    watched = _watched_run(command, rows_on_stdout=args.json == "-")
    yield from _report(watched)
    restored = (yield from _restore(command, watched, args)) if args.restore and not watched.status else []
    if args.html:
        from deepstack_harness.runs.report.watch_page import render_watch

        write_text(args.html, render_watch(command, watched, restored))
    code = _code(watched, args.fail_on)
    if watched.status:
        yield Line(
            f"{_ended(watched.status)}; without it the exit code would be {int(code)}: {_why(watched, code)}"
        )
    return watched.status or code


def _ended(status: int) -> str:
    number = status - 128
    if number in {known.value for known in signal.Signals}:
        return f"the program was ended by {signal.Signals(number).name} (exit code {status})"
    return f"the program ended with exit code {status}"


def _why(watched: WatchedRun, code: ExitCode) -> str:
    """Return the reason of an exit code in a few words."""
    if code is ExitCode.MACHINE and watched.unwatched:
        return "not everything was watched"
    decisive = len(watched.decisive)
    return (
        f"{plural(decisive, 'guard')} that decide{'s' if decisive == 1 else ''} failed"
        if decisive
        else "no guard that decides failed"
    )


def _code(watched: WatchedRun, fail_on: str) -> ExitCode:
    has_effect = [guard["has_effect"] for _, _, guard in watched.decisive]
    if any(has_effect) if fail_on == "effect" else has_effect:
        return ExitCode.BROKEN
    # A guard that decides and was not measured is in doubt where the effect counts.
    return ExitCode.MACHINE if has_effect or watched.unwatched else ExitCode.HOLDS


def _watched_run(
    command: Sequence[str], restored: Sequence[str] = (), *, rows_on_stdout: bool = False
) -> WatchedRun:
    with tempfile.TemporaryDirectory(prefix="deepstack-watch-") as name:
        folder = Path(name)
        environment = start_in_children(folder, os.environ, restored)
        with Unreached(folder) as unreached:
            stdout = sys.stderr if rows_on_stdout else None
            try:
                with (
                    subprocess.Popen(command, env=environment, stdout=stdout) as running,
                    _forwarding(running),
                ):
                    status = running.wait()
            except OSError as error:
                raise UsageError(f"cannot run '{command[0]}': {error.strerror}") from None
        # A signal of number n is 128 + n.
        return WatchedRun(128 - status if status < 0 else status, read_processes(folder), unreached.found)


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


def _report(watched: WatchedRun) -> Document:
    if not watched.decisive:  # then it is the reason of the exit code
        _say_unwatched(watched)
    yield from _report_findings(watched)
    if watched.regions:
        compiling = [process for process in watched.processes if process.compiles]
        dropped = sum(sum(region["dropped"].values()) for region in watched.regions)
        yield Line(
            f"{plural(len(compiling), 'process')}, {plural(len(watched.regions), 'region')}, "
            f"{plural(sum(region['calls'] for region in watched.regions), 'call')}, "
            f"{plural(dropped, 'dropped guard')}; failed and decide: {len(watched.decisive) or 'none'}"
        )
    for line in region_lines(watched.regions):
        yield Line(line)
    engines: dict[str, list[str]] = {}
    for process in watched.processes:
        for region in process.regions.values():
            if region["uncompiled"] and not region["problem"]:
                yield Line(f"{_calls_as_written(region)}: {region['uncompiled']} (process {process.pid})")
        for text in process.engines.values():
            engines.setdefault(text, []).append(str(process.pid))
        if process.compiles and not process.ended:
            yield Line(
                f"process {process.pid} did not come to its end: its counts and findings are here, the last "
                "inputs are missing"
            )
    for text, pids in engines.items():
        several = len(pids) > 1
        yield Line(
            f"{'processes' if several else 'process'} {', '.join(pids)} {'are' if several else 'is'} {text}"
        )
    if watched.decisive:
        _say_unwatched(watched)


def _report_findings(watched: WatchedRun) -> Document:
    several = len({process.pid for process in watched.processes if process.regions}) > 1
    for process in watched.processes:
        rank = f", rank {process.rank}" if process.rank else ""
        who = f"process {process.pid}{rank}" if several or rank else ""
        decide = [(region, guard) for owner, region, guard in watched.decisive if owner is process]
        for finding in findings(decide):
            yield Line(finding_text(finding, who))
            text, argument = to_do(finding)
            yield Line(f"  {text}", command=argument)
        for region in process.regions.values():
            yield {"pid": process.pid, "rank": process.rank, "ended": process.ended, **region}


def _say_unwatched(watched: WatchedRun) -> None:
    for text in watched.unwatched:
        say(f"deepstack-harness: {text}")


def _calls_as_written(region: dict[str, Any]) -> str:
    return f"{region['name']} ({region['where']}) ran uncompiled in {plural(region['calls'], 'call')}"


def _restore(command: Sequence[str], watched: WatchedRun, args: Namespace) -> Document[list[dict[str, Any]]]:
    """Run the program again with one guard put back; return for each guard what still fails then."""
    sources = list(dict.fromkeys(guard["restored_by"] for _, _, guard in watched.decisive))
    restored = []
    for source in sources[:_MOST_RESTORED]:
        again = _watched_run(command, [source], rows_on_stdout=args.json == "-")
        left = list(dict.fromkeys(guard["restored_by"] for _, _, guard in again.decisive))
        row = {"restored": source, "status": again.status, "still_failing": left}
        restored.append(row)
        yield row
        if again.status:
            after = f"the program ended with {again.status}, and with 0 without it: its output is unknown"
        elif source in left:
            after = "it still fails, so torch did not evaluate this guard"
        else:
            failing = f"; still failing: {', '.join(left)}" if left else " in all calls"
            after = f"torch compiles again where it fails, and the output is right{failing}"
        yield Line(f"{source} put back: {after}")
    if len(sources) > _MOST_RESTORED:
        say(f"deepstack-harness: {len(sources) - _MOST_RESTORED} further guards were not put back")
    return restored
