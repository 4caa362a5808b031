"""One group, from its first task to its last, whatever they do to their processes."""

from collections.abc import Callable, Generator, Iterator, Mapping

from deepstack_harness.runs.process import GroupProcess, Limits
from deepstack_harness.runs.task_result import Done, Ending, lost
from deepstack_harness.runs.tasks import Group, Task

Notice = Callable[[GroupProcess], None]


def play_group(
    group: Group, limits: Limits, environment: Mapping[str, str], started: Notice = lambda _: None
) -> Generator[Done]:
    """Every task of a group as it ends; after one that broke its process the rest get a fresh one.

    `started` is told of every process.  Closing the iterator ends the process.  Where a
    process does not even start, nothing of the group can be played, and is not tried.
    """
    process = None
    try:
        for index, task in enumerate(group.tasks):
            if process is None:
                process = GroupProcess(limits, environment)
                started(process)
            done, fit = process.play(task)
            yield done
            if not process.started:
                yield from _not_started(group.tasks[index + 1 :], done)
                return
            if not fit:
                process.close()
                process = None
    finally:
        if process is not None:
            process.close()


def _not_started(tasks: tuple[Task, ...], first: Done) -> Iterator[Done]:
    why = f"as case {first.case.case} of this group, whose process did not start"
    return (lost(task, Ending(first.case.ending), why, first.case.output, 0.0) for task in tasks)
