"""`run`: the matrix of incidents and contract traces, in processes of their own, into a folder.

While it runs, a line for each group that ended; at the end a summary.
"""

from __future__ import annotations

import time
from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from deepstack_harness.cli.arguments import resumable
from deepstack_harness.cli.output import progress
from deepstack_harness.contract.verdicts import UNEXPECTED, WORST_FIRST, Row, Verdict
from deepstack_harness.document.blocks import BLANK, Column, Document, Line, TextTable, outcome, table_line
from deepstack_harness.errors import ExitCode, UsageError, unknown_name
from deepstack_harness.options import add_options, finite, record_of, whole
from deepstack_harness.runs.case_result import CaseResult
from deepstack_harness.runs.causes import unexpected_causes
from deepstack_harness.runs.execution import EXECUTORS, Execution, RunRequest
from deepstack_harness.runs.pools import Group
from deepstack_harness.runs.records import CaseRecord
from deepstack_harness.text import plural

if TYPE_CHECKING:
    from deepstack_harness.runs.store import RunPart

_GIB = 2**30
"""Bytes of a GiB."""
_MOST_WORKERS = 1024
"""Workers of `-n` at most: a mistyped number must not start a process for each case."""


def add_arguments(parser: ArgumentParser) -> None:
    """Add what to play, on what, and where to write it."""
    add_options(parser, RunRequest, "selection", "tier", "devices", "buffers", "workers", "shard", "executor")
    parser.add_argument("--out", metavar="DIR", help="the folder to write (default reports/<UTC time>)")
    parser.add_argument(
        "--torch", action="append", default=[], metavar="V",
        help="play it under this torch, and show what changes: a release (2.15), a range (2.10..2.15) or an "
        "interpreter that has one; may be repeated. Environments are made from the configured index, up to "
        "6 GB each",
    )  # fmt: skip
    parser.add_argument(
        "--keep", type=whole, metavar="N",
        help="with --torch, keep the N environments that were used last, and remove the others (default: "
        "keep all)",
    )  # fmt: skip
    add_options(parser, RunRequest, "cheapest_first")
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


def run(args: Namespace) -> Document[ExitCode]:
    """Exit 0 when nothing is unexpected: no FAIL, ERROR, IMPROVED or MISSING; 1 otherwise."""
    request = _request(args)
    if args.resume and not args.out:
        raise UsageError("--resume continues the run in a folder: name it with --out DIR")
    folder = Path(args.out or Path("reports") / datetime.now(UTC).strftime("%Y-%m-%dT%H-%M-%SZ"))
    if args.torch:
        from deepstack_harness.cli.torches import run_torches

        return (yield from run_torches(args, folder))
    execution = Execution(request, folder, resume=args.resume)
    with closing(execution.writer):
        yield from _announce(execution, folder, resume=args.resume)
        with resumable(args, folder, "to play the cases that are left"), progress("starting") as say:
            table = LiveTable(execution.groups, say)
            yield from table.head()
            for result in execution.play():
                yield from table.add(result)
        return (yield from _close(execution.writer.part, folder))


def _request(args: Namespace) -> RunRequest:
    from deepstack_harness.runs.pools import RUN_LIMITS

    request = record_of(RunRequest, args)
    if request.executor not in EXECUTORS:
        raise unknown_name("--executor", request.executor, EXECUTORS)
    if args.keep is not None and not args.torch:
        raise UsageError("--keep is about the environments of --torch: give --torch, such as 2.15")
    if args.keep is not None and args.keep < 0:
        raise UsageError(f"--keep takes 0 or more, not {args.keep}")
    for name, value, least in (("-n", args.workers, 1), ("--memory", args.memory, 0)):
        if value < least:
            raise UsageError(f"{name} takes {least} or more, not {value:g}")
    if args.workers > _MOST_WORKERS:
        raise UsageError(f"-n takes up to {_MOST_WORKERS}, not {args.workers}")
    if args.case_seconds <= 0:
        raise UsageError(f"--case-seconds takes more than 0, not {args.case_seconds:g}")
    # A driver of a GPU maps far more than it uses.
    limited = args.memory > 0 and all(device == "cpu" for device in request.devices)
    memory = int(args.memory * _GIB) if limited else None
    return replace(request, limits=replace(RUN_LIMITS, call_s=args.case_seconds, memory=memory))


def _announce(execution: Execution, folder: Path, *, resume: bool) -> Document:
    part, groups = execution.writer.part, execution.groups
    left = sum(len(group.cases) for group in groups)
    before = f", {plural(len(part.cases), 'case')} there already" if resume else ""
    yield Line(f"{plural(left, 'case')} in {plural(len(groups), 'group')} into {folder}{before}")
    for group in execution.left_out:
        yield Line(f"left out: {group.name}, which needs {plural(group.ranks, 'GPU')}", "yellow")
    yield from part.rows


def _close(part: RunPart, folder: Path) -> Document[ExitCode]:
    from deepstack_harness.runs.frames import has_datasets, write_parquet

    if has_datasets():
        write_parquet(part)
    else:
        missing = "the library `datasets` is not installed"
        yield Line(f"no Parquet file: {missing}; the JSON lines are complete", "yellow")
    good = yield from close(part.rows, part.cases, str(folder))
    return ExitCode.HOLDS if good else ExitCode.BROKEN


_LONGEST = 200
"""Characters of a line of progress."""


class LiveTable:
    """A table that grows with every case that ends."""

    def __init__(self, groups: Sequence[Group], say: Callable[[str], None]) -> None:
        """Show nothing yet; `groups` are left to play; the progress is shown by calling `say`."""
        self._say = say
        self._left = {group.name: len(group.cases) for group in groups}
        self._all, self._began = sum(self._left.values()), time.monotonic()
        self._ended: dict[str, list[CaseResult]] = {group.name: [] for group in groups}
        self._columns = [
            Column("group", max(map(len, (*self._left, "group")))), Column("cases", 5, right=True),
            Column("seconds", 8, right=True), Column("judgements"),
        ]  # fmt: skip

    def head(self) -> Document:
        """Yield the heads of the columns, unless all was played before."""
        if self._left:
            yield TextTable(self._columns)

    def add(self, result: CaseResult) -> Document:
        """Count one case, and show the time that the others take; the last of a group prints its line."""
        name = result.case.group
        self._ended[name].append(result)
        self._left[name] -= 1
        left = sum(self._left.values())
        done, seconds = self._all - left, max(time.monotonic() - self._began, 1e-9)
        rate, remaining = 60 * done / seconds, timedelta(seconds=round(left * seconds / done))
        progress = f"{done} of {plural(self._all, 'case')}, {rate:.0f} a minute, about {remaining} left"
        self._say(f"{progress}; the last one was {name}")
        yield from result.rows
        if self._left[name]:
            return
        ended = self._ended.pop(name)
        rows = [row for result in ended for row in result.rows]
        seconds = sum(result.case.seconds for result in ended)
        bad = unexpected(ended)
        cells = [name, str(len(ended)), f"{seconds:.1f}", counted(rows)]
        yield table_line(self._columns, cells, "red" if bad else "")
        for line in bad:
            yield Line(f"  {line}"[:_LONGEST])


def unexpected(ended: Iterable[CaseResult]) -> list[str]:
    """Return a line for each unexpected judgement; one line for a case that did not come to its end."""
    lines = []
    for result in ended:
        case, bad = result.case, [row for row in result.rows if row.verdict in UNEXPECTED]
        where = f"{case.subject} {case.dtype} '{case.trace}'"
        if bad and {row.verdict for row in result.rows} == {Verdict.ERROR}:
            lines.append(f"ERROR {where}: {bad[0].detail}")
        else:
            lines += [f"{row.verdict} {row.rule} {where}: {row.detail}" for row in bad]
    return lines


def counted(rows: Iterable[Row]) -> str:
    """Return `3 FAIL, 120 PASS`: the worst first, without SKIP."""
    counts = Counter(row.verdict for row in rows)
    shown = [verdict for verdict in WORST_FIRST if counts[verdict] and verdict is not Verdict.SKIP]
    return ", ".join(f"{counts[verdict]} {verdict}" for verdict in shown) or "nothing to judge"


def close(rows: Sequence[Row], cases: Sequence[CaseRecord], folder: str) -> Document[bool]:
    """Print the closing line; return whether everything is as expected."""
    good = not any(row.verdict in UNEXPECTED for row in rows)
    lost = sum(not case.steps for case in cases)
    note = f"; {lost} did not come to their end" if lost else ""
    why = ""
    if causes := unexpected_causes(rows, cases).most_common():
        others = f" and {plural(len(causes) - 1, 'other cause')}" if causes[1:] else ""
        why = f"; {causes[0][1]} times {causes[0][0]}{others}"
    yield BLANK
    yield outcome(f"{plural(len(cases), 'case')}{note}: {counted(rows)}{why}; see {folder}", good=good)
    return good
