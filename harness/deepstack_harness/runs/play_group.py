"""Play one group from its first case to its last, whatever the cases do to their worker."""

import time
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import replace

from deepstack_harness.contract.arm_spec import Backend
from deepstack_harness.contract.case import PlannedCase
from deepstack_harness.oracles.judged_case import judge_case
from deepstack_harness.play.case_worker import CaseWorker, observation_of
from deepstack_harness.results.case_result import CaseResult, lost_result, result_of
from deepstack_harness.results.records import CaseEnding
from deepstack_harness.runs.groups import Group
from deepstack_harness.workers.foreign import FOREIGN_LIMITS, profile_of
from deepstack_harness.workers.limits import Limits
from deepstack_harness.workers.outcomes import (
    RaisedInWorker,
    RanOutOfMemory,
    TimedOut,
    WorkerEnd,
)
from deepstack_harness.workers.profiles import SandboxProfile
from deepstack_harness.workers.worker import Worker

RUN_LIMITS = replace(
    FOREIGN_LIMITS,
    raised_by={**FOREIGN_LIMITS.raised_by, "call_s": "--case-seconds", "memory": "--memory"},
)
"""Limits of the worker of a group; a call is one case, with its compiles."""

Notice = Callable[[Worker], None]


def play_group(
    group: Group, limits: Limits, environment: Mapping[str, str], started: Notice = lambda _: None
) -> Generator[CaseResult]:
    """Yield the result of every case of a group; after a case that broke the worker a new one is started.

    The worker measures, this process judges.  `started` is called with every worker.  Closing the iterator
    ends the worker.  Where a worker does not even start, the cases that are left are not tried.
    """
    compiles = any(planned.case.arm.backend is not Backend.NONE for planned in group.cases)
    with CaseWorker(limits, environment, started, _sandbox(group), compiles=compiles) as worker:
        for index, planned in enumerate(group.cases):
            end = worker.start()
            if end is not None:
                yield from _not_started(group.cases[index:], end)
                return
            yield _play(worker, planned)


def _sandbox(group: Group) -> SandboxProfile | None:
    """Return the weakest profile that a case of the group needs; None where all code is ours."""
    found = [profile_of(planned.case) for planned in group.cases]
    # Cases of a group share arm and device, so that only the kind of the buffer makes a difference.
    return max(filter(None, found), key=lambda profile: profile.processes, default=None)


def _play(worker: CaseWorker, planned: PlannedCase) -> CaseResult:
    started = time.monotonic()
    end = worker.play(planned.case)
    seconds = time.monotonic() - started
    if isinstance(end, RaisedInWorker):
        result = lost_result(planned, CaseEnding.RAISED, end.sentence, "", seconds)
    elif isinstance(end, WorkerEnd) and not end.facts:
        return lost_result(planned, _ending_of(end), end.sentence, end.output, seconds)
    else:
        judged = judge_case(planned, observation_of(planned.case, end))
        result = result_of(judged, seconds, _ending_of(end) if isinstance(end, WorkerEnd) else None)
    if result.case.ending.is_whole:
        return result
    worker.close()
    return _with_output(result, end.output)


def _ending_of(end: WorkerEnd) -> CaseEnding:
    match end:
        case TimedOut():
            return CaseEnding.TIMED_OUT
        case RanOutOfMemory():
            return CaseEnding.OUT_OF_MEMORY
    return CaseEnding.CRASHED


def _with_output(result: CaseResult, output: str) -> CaseResult:
    """Add what a case printed, where the result has no output of its own."""
    if result.case.output:
        return result
    return replace(result, case=replace(result.case, output=output))


def _not_started(cases: tuple[PlannedCase, ...], end: WorkerEnd) -> Iterator[CaseResult]:
    ending = _ending_of(end)
    first = lost_result(cases[0], ending, end.sentence, end.output, 0.0)
    yield first
    why = f"as case {first.case.case} of this group, whose worker did not start"
    for planned in cases[1:]:
        yield lost_result(planned, ending, why, end.output, 0.0)
