"""Run a command line under a supervisor: nothing that it starts outlives it, or this process."""

import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from deepstack_harness.workers.limits import Limits
from deepstack_harness.workers.outcomes import Crowded, Flooded, TimedOut, WorkerEnd, end_of
from deepstack_harness.workers.supervised import TAIL, StartOptions, Supervised


@dataclass(frozen=True)
class Command:
    """A command line, where and with which environment it runs, and what becomes of its output.

    `environment` is added to ours, where None removes a variable.  `log` is a file for everything that it
    prints; without it the end of the output is kept.  `stderr` False drops what it prints there.
    """

    words: Sequence[str]
    folder: Path | None = None
    environment: Mapping[str, str | None] | None = None
    log: Path | None = None
    stderr: bool = True


def run_command(command: Command, limits: Limits) -> WorkerEnd:
    """Run a command until it ends or `limits.call_s` is over; `Exited` has its status.

    What it started ends with it.  Raises `OSError` where it cannot be executed or its log cannot be written.
    """
    options = StartOptions(
        {"command": list(command.words)}, environment=command.environment, folder=command.folder,
        stderr=subprocess.STDOUT if command.stderr else subprocess.DEVNULL,
    )  # fmt: skip
    if command.log is None:
        return _run(Supervised(options, limits), limits)
    with command.log.open("wb") as log:
        return _run(Supervised(replace(options, output=log), limits), limits, command.log)


def _run(process: Supervised, limits: Limits, log: Path | None = None) -> WorkerEnd:
    over = None if limits.call_s is None else time.monotonic() + limits.call_s
    flooded, in_time = False, True
    try:
        while in_time and not flooded and not process.gone:
            in_time = process.listen(over)
            flooded = limits.output is not None and process.printed > limits.output
    finally:
        process.close()
    if process.refused is not None:
        raise process.refused
    tail = (process.tail if log is None else _tail(log)).decode(errors="replace")
    if process.crowd is not None:
        return Crowded(count=process.crowd, limit=limits.processes or 0, output=tail)
    if flooded:
        return Flooded(size=process.printed, output=tail)
    if not in_time:
        assert limits.call_s is not None  # nothing else ends the wait
        return TimedOut(seconds=limits.call_s, output=tail)
    return end_of(process.end_status, output=tail)


def _tail(log: Path) -> bytes:
    with log.open("rb") as printed:
        printed.seek(max(0, log.stat().st_size - TAIL))
        return printed.read()
