"""`run`: the matrix of incidents and contract traces, in processes of their own, into a folder."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from deepstack_harness.commands.arguments import finite, whole
from deepstack_harness.contract.plural import plural
from deepstack_harness.errors import ExitCode, UsageError, unknown_name
from deepstack_harness.reporting.terminal.output import Output

if TYPE_CHECKING:
    from deepstack_harness.results.read import RunPart
    from deepstack_harness.runs.execution import Execution, RunRequest

SUMMARY = "run the matrix of families, revisions, traces, arms, dtypes and devices, in parallel"
_GIB = 2**30
_MOST_WORKERS = 1024


def add_arguments(parser: ArgumentParser) -> None:
    """Add what to play, on what, and where to write it."""
    parser.add_argument(
        "selection",
        nargs="?",
        metavar="SELECTION",
        help="an expression over family, revision, caller, trace, arm, backend, guards, shapes, capture, "
        "dtype, device, incident, such as \"family == 'qwen3_vl' and backend != 'inductor'\"",
    )
    parser.add_argument(
        "--tier", default="ci", metavar="T", help="ci (default) or nightly, which has all cases"
    )
    parser.add_argument(
        "--device", action="append", metavar="D", help="cpu (default), cuda or cuda:N; may be repeated"
    )
    parser.add_argument(
        "--buffer", action="append", default=[], metavar="MODULE:CLASS",
        help="instead, play the contract traces on this class of your own; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "-n", dest="workers", type=whole, default=1, metavar="W", help="number of workers (default 1)"
    )
    parser.add_argument(
        "--shard", metavar="I/N", help="play only part I of N; all parts may write into one folder"
    )
    parser.add_argument("--executor", default="local", metavar="E", help="local (default) or ray")
    parser.add_argument("--out", metavar="DIR", help="the folder to write (default reports/<UTC time>)")
    parser.add_argument("--resume", action="store_true", help="continue the run in --out DIR")
    parser.add_argument(
        "--case-seconds",
        type=finite,
        default=300.0,
        metavar="S",
        help="timeout of a case in seconds (default 300)",
    )
    parser.add_argument(
        "--memory", type=finite, default=8.0, metavar="GIB",
        help="limit of the private memory of a process (default 8, on CPU only); 0 is no limit",
    )  # fmt: skip


def run(args: Namespace, output: Output) -> ExitCode:
    """Exit 0 when nothing is unexpected: no FAIL, ERROR, IMPROVED or MISSING; 1 otherwise."""
    from deepstack_harness.runs.execution import Execution

    wanted = _wanted(args)
    if args.resume and not args.out:
        raise UsageError("--resume continues the run in a folder: name it with --out DIR")
    folder = Path(args.out or Path("reports") / datetime.now(UTC).strftime("%Y-%m-%dT%H-%M-%SZ"))
    execution = Execution(wanted, folder, resume=args.resume)
    with closing(execution.writer):
        _announce(execution, folder, output, resume=args.resume)
        _play(execution, output)
        return _close(execution.writer.part, folder, output)


def _wanted(args: Namespace) -> RunRequest:
    from deepstack_harness.results.files import Shard
    from deepstack_harness.runs.execution import EXECUTORS, RunRequest
    from deepstack_harness.runs.play_group import RUN_LIMITS
    from deepstack_harness.runs.selection import Tier

    _known("--tier", args.tier, list(Tier))
    _known("--executor", args.executor, EXECUTORS)
    for name, value, least in (("-n", args.workers, 1), ("--memory", args.memory, 0)):
        if value < least:
            raise UsageError(f"{name} takes {least} or more, not {value:g}")
    if args.workers > _MOST_WORKERS:
        raise UsageError(f"-n takes up to {_MOST_WORKERS}, not {args.workers}")
    if args.case_seconds <= 0:
        raise UsageError(f"--case-seconds takes more than 0, not {args.case_seconds:g}")
    devices = tuple(dict.fromkeys(args.device or ["cpu"]))
    # A driver of a GPU maps far more than it uses.
    limited = args.memory > 0 and all(device == "cpu" for device in devices)
    memory = int(args.memory * _GIB) if limited else None
    return RunRequest(
        args.selection, Tier(args.tier), devices, tuple(dict.fromkeys(args.buffer)),
        Shard.parse(args.shard) if args.shard else None, args.workers, args.executor,
        replace(RUN_LIMITS, call_s=args.case_seconds, memory=memory),
    )  # fmt: skip


def _known(option: str, value: str, known: list[str] | tuple[str, ...]) -> None:
    if value not in known:
        raise unknown_name(option, value, known)


def _announce(execution: Execution, folder: Path, output: Output, *, resume: bool) -> None:
    part, groups = execution.writer.part, execution.groups
    left = sum(len(group.cases) for group in groups)
    before = f", {plural(len(part.cases), 'case')} there already" if resume else ""
    output.line(f"{plural(left, 'case')} in {plural(len(groups), 'group')} into {folder}{before}")
    for group in execution.left_out:
        output.line(f"left out: {group.name}, which needs {plural(group.ranks, 'GPU')}", "yellow")
    for row in part.rows:
        output.record(row)


def _play(execution: Execution, output: Output) -> None:
    from deepstack_harness.reporting.terminal.live_table import LiveTable

    with output.progress("starting") as say:
        table = LiveTable(output, execution.groups, say)
        for result in execution.play():
            table.add(result)


def _close(part: RunPart, folder: Path, output: Output) -> ExitCode:
    from deepstack_harness.reporting.terminal.live_table import close
    from deepstack_harness.results.parquet import has_datasets, write_parquet

    if has_datasets():
        write_parquet(part)
    else:
        output.line(
            "no Parquet file: the library `datasets` is not installed; the JSON lines are complete", "yellow"
        )
    return ExitCode.HOLDS if close(output, part.rows, part.cases, str(folder)) else ExitCode.BROKEN
