"""Play one group from its first task to its last, whatever the tasks do to their worker."""

import time
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import replace

import msgspec

from deepstack_harness.runs.task_result import Done, Ending, lost
from deepstack_harness.runs.tasks import Group, Task
from deepstack_harness.workers.limits import Limits
from deepstack_harness.workers.outcomes import (
    Answered,
    CallResult,
    RaisedInWorker,
    RanOutOfMemory,
    TimedOut,
    WorkerEnd,
)
from deepstack_harness.workers.worker import Worker

RUN_LIMITS = Limits(start_s=300.0, call_s=300.0, memory=8 * 2**30)
"""Limits of the worker of a group; a call is one case."""
_WORK = "deepstack_harness.runs.worker"

Notice = Callable[[Worker], None]


def play_group(
    group: Group, limits: Limits, environment: Mapping[str, str], started: Notice = lambda _: None
) -> Generator[Done]:
    """Yield the result of every task of a group; after a task that broke the worker a new one is started.

    `started` is called with every worker.  Closing the iterator ends the worker.  Where a worker does not
    even start, the tasks that are left are not tried.
    """
    worker: Worker | None = None
    try:
        for index, task in enumerate(group.tasks):
            if worker is None:
                worker = Worker(limits, preload=_WORK, environment=environment)
                started(worker)
            end = worker.start()
            if end is not None:
                yield from _not_started(group.tasks[index:], end)
                return
            done, fit = _play(worker, task)
            yield done
            if not fit:
                worker.close()
                worker = None
    finally:
        if worker is not None:
            worker.close()


def _play(worker: Worker, task: Task) -> tuple[Done, bool]:
    """Let the worker play a task; return its result, and False where the worker must not be used again."""
    started = time.monotonic()
    result = worker.call(f"{_WORK}:play", {"task": msgspec.to_builtins(task)})
    seconds = time.monotonic() - started
    match result:
        case Answered(value=value):
            return _with_output(msgspec.convert(value["done"], Done), result, fit=value["fit"]), value["fit"]
        case RaisedInWorker():
            done = lost(task, Ending.RAISED, result.sentence, "", seconds)
            return _with_output(done, result, fit=False), False
        case WorkerEnd():
            return lost(task, _ending(result), result.sentence, result.output, seconds), False


def _ending(end: WorkerEnd) -> Ending:
    match end:
        case TimedOut():
            return Ending.TIMED_OUT
        case RanOutOfMemory():
            return Ending.OUT_OF_MEMORY
    return Ending.CRASHED


def _with_output(done: Done, result: CallResult, *, fit: bool) -> Done:
    """Add what a case printed, where the case went wrong and has no output of its own."""
    if fit or done.case.output:
        return done
    return replace(done, case=replace(done.case, output=result.output))


def _not_started(tasks: tuple[Task, ...], end: WorkerEnd) -> Iterator[Done]:
    first = lost(tasks[0], _ending(end), end.sentence, end.output, 0.0)
    yield first
    why = f"as case {first.case.case} of this group, whose worker did not start"
    for task in tasks[1:]:
        yield lost(task, _ending(end), why, end.output, 0.0)
