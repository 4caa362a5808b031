"""One group, from its first case to its last, whatever they do to their processes."""

from collections.abc import Callable, Generator, Iterator, Mapping

from deepstack_harness.contract.case import PlannedCase
from deepstack_harness.results.case_result import CaseResult, lost_result
from deepstack_harness.runs.groups import Group
from deepstack_harness.runs.process import GroupProcess, Limits

Notice = Callable[[GroupProcess], None]


def play_group(
    group: Group, limits: Limits, environment: Mapping[str, str], started: Notice = lambda _: None
) -> Generator[CaseResult]:
    """Play the cases of a group; a case that broke its process is followed by a fresh process.

    `started` is told of every process.  Closing the iterator ends the process.  Where a
    process does not even start, nothing of the group can be played, and is not tried.
    """
    process = None
    try:
        for index, planned in enumerate(group.cases):
            if process is None:
                process = GroupProcess(limits, environment)
                started(process)
            result, fit = process.play(planned)
            yield result
            if not process.started:
                yield from _not_started(group.cases[index + 1 :], result)
                return
            if not fit:
                process.close()
                process = None
    finally:
        if process is not None:
            process.close()


def _not_started(cases: tuple[PlannedCase, ...], first: CaseResult) -> Iterator[CaseResult]:
    why = f"as case {first.case.case} of this group, whose process did not start"
    return (lost_result(planned, first.case.ending, why, first.case.output, 0.0) for planned in cases)
