"""Groups of cases that share a process, and the pool that plays each group in a worker of its own.

A group is played from its first case to its last, whatever the cases do to their worker: after a crash, a
timeout or a case out of memory a new worker plays the next case.
"""

import hashlib
import tempfile
import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from threading import Condition

from deepstack_harness.contract.arm import Backend
from deepstack_harness.contract.case import PlannedCase
from deepstack_harness.contract.oracles.judge import judge_case
from deepstack_harness.play.case_worker import CaseWorker, observation_of
from deepstack_harness.runs.case_result import CaseResult, lost_result, result_of
from deepstack_harness.runs.machine import VISIBLE
from deepstack_harness.runs.records import CaseEnding, Shard
from deepstack_harness.workers.limits import Limits
from deepstack_harness.workers.outcomes import EndKind, RaisedInWorker, WorkerEnd
from deepstack_harness.workers.pool import map_items
from deepstack_harness.workers.profiles import FOREIGN_LIMITS, profile_of

_SECONDS = {
    Backend.NONE: 0.05,
    Backend.EAGER: 0.5,
    Backend.AOT_EAGER: 1.5,
    Backend.INDUCTOR: 8.0,
    Backend.H200: 20.0,
}
"""Rough seconds of a case on one core: long groups begin first, so that none is the last to end by far."""


@dataclass(frozen=True)
class Group:
    """Cases of one family, arm and device: one warm process plays them one after the other."""

    cases: tuple[PlannedCase, ...]

    @property
    def name(self) -> str:
        """Family, arm and device, as `Case.group` has them."""
        return self.cases[0].group

    @property
    def device(self) -> str:
        """The device of all cases."""
        return self.cases[0].case.device

    @property
    def ranks(self) -> int:
        """The number of processes, and on CUDA of GPUs, that a case takes."""
        return self.cases[0].case.arm.ranks

    @property
    def seconds(self) -> float:
        """A rough estimate of its duration."""
        case = self.cases[0].case
        return len(self.cases) * case.arm.ranks * _SECONDS[case.arm.backend]

    def without(self, done: frozenset[str]) -> "Group | None":
        """Return the cases with other ids; None where no case is left."""
        left = tuple(planned for planned in self.cases if planned.id not in done)
        return Group(left) if left else None


def grouped(cases: Iterable[PlannedCase]) -> list[Group]:
    """Put each case once into its group; return long groups first."""
    members_of: dict[str, dict[str, PlannedCase]] = {}
    for planned in cases:
        members_of.setdefault(planned.group, {}).setdefault(planned.id, planned)
    groups = [Group(tuple(members.values())) for members in members_of.values()]
    return sorted(groups, key=lambda group: (-group.seconds, group.name))


def part_of(groups: Sequence[Group], shard: Shard | None) -> list[Group]:
    """Return every N-th group: the parts are disjoint, and together they are all groups."""
    return list(groups if shard is None else groups[shard.index - 1 :: shard.count])


def fingerprint(groups: Iterable[Group]) -> str:
    """Return a text that is equal for equal sets of cases, whatever their order."""
    ids = sorted(planned.id for group in groups for planned in group.cases)
    return hashlib.sha256("".join(ids).encode()).hexdigest()[:12]


RUN_LIMITS = replace(
    FOREIGN_LIMITS,
    raised_by={**FOREIGN_LIMITS.raised_by, "call_s": "--case-seconds", "memory": "--memory"},
)
"""Limits of the worker of a group; a call is one case, with its compiles."""


def play_group(worker: CaseWorker, group: Group, environment: Mapping[str, str]) -> Generator[CaseResult]:
    """Yield the result of every case of a group; after a case that broke its process a new one is started.

    The worker measures, this process judges. The process is of this group only: it ends with the iterator.
    Where one does not even start, the cases that are left are not tried.
    """
    # The weakest profile that a case needs; None where all code is ours.  Cases of a group share arm and
    # device, so that only the kind of the buffer makes a difference.
    profiles = filter(None, (profile_of(planned.case) for planned in group.cases))
    worker.prepare(
        environment=environment,
        sandbox=max(profiles, key=lambda profile: profile.processes, default=None),
        compiles=any(planned.case.arm.backend is not Backend.NONE for planned in group.cases),
    )
    with worker:
        for index, planned in enumerate(group.cases):
            end = worker.start()
            if end is not None:
                yield from _not_started(group.cases[index:], end)
                return
            yield _play(worker, planned)


def _play(worker: CaseWorker, planned: PlannedCase) -> CaseResult:
    started = time.monotonic()
    end = worker.play(planned.case)
    seconds = time.monotonic() - started
    if isinstance(end, RaisedInWorker):
        result = lost_result(planned, CaseEnding.RAISED, end.sentence, "", seconds)
    elif isinstance(end, WorkerEnd) and not end.facts:
        return lost_result(planned, _ending_of(end), end.sentence, end.output, seconds)
    else:
        judged_case = judge_case(planned, observation_of(planned.case, end))
        result = result_of(judged_case, seconds, _ending_of(end) if isinstance(end, WorkerEnd) else None)
    if result.case.ending.is_whole:
        return result
    worker.close()
    return _with_output(result, end.output)


def _with_output(result: CaseResult, output: str) -> CaseResult:
    """Add what a case printed, where the result has no output of its own."""
    if result.case.output:
        return result
    return replace(result, case=replace(result.case, output=output))


def _ending_of(end: WorkerEnd) -> CaseEnding:
    endings = {EndKind.TIMED_OUT: CaseEnding.TIMED_OUT, EndKind.OUT_OF_MEMORY: CaseEnding.OUT_OF_MEMORY}
    return endings.get(end.kind, CaseEnding.CRASHED)


def _not_started(cases: tuple[PlannedCase, ...], end: WorkerEnd) -> Iterator[CaseResult]:
    ending = _ending_of(end)
    first = lost_result(cases[0], ending, end.sentence, end.output, 0.0)
    yield first
    why = f"as case {first.case.case} of this group, whose worker did not start"
    for planned in cases[1:]:
        yield lost_result(planned, ending, why, end.output, 0.0)


class LocalPool:
    """Worker pool of this machine; on CUDA each group has GPUs of its own."""

    def __init__(self, workers: int, limits: Limits, gpus: Sequence[str] = ()) -> None:
        """Start no process yet; `gpus` are names for CUDA_VISIBLE_DEVICES, empty if no group runs on CUDA."""
        self._workers = workers
        self._limits = limits
        self._gpus = FreeGpus(gpus)

    def play(self, groups: Sequence[Group]) -> Generator[CaseResult]:
        """Yield the result of every case as it ends; closing the iterator ends every worker."""
        with tempfile.TemporaryDirectory(prefix="deepstack-run-", ignore_cleanup_errors=True) as folder:
            # A cache for the workers of this run only: one that an earlier run filled hides compiles.
            cache = {"TORCHINDUCTOR_CACHE_DIR": folder}

            def play_on_gpus(worker: CaseWorker, group: Group) -> Iterator[CaseResult]:
                with self._gpus.taken(group) as seen:
                    yield from play_group(worker, group, {**cache, **seen})

            yield from map_items(
                play_on_gpus, groups, [CaseWorker(self._limits) for _ in range(self._workers)]
            )


class FreeGpus:
    """Lender of GPUs: a group gets as many as it has ranks, each GPU for one group at a time."""

    def __init__(self, names: Sequence[str]) -> None:
        """Begin with all of them free."""
        self._free = list(names)
        self._changed = Condition()

    @contextmanager
    def taken(self, group: Group) -> Iterator[dict[str, str]]:
        """Wait for the GPUs of a group; yield the environment of a process that sees only these."""
        if group.device != "cuda":  # every process sees a GPU that was named, such as cuda:1
            yield {}
            return
        with self._changed:
            self._changed.wait_for(lambda: len(self._free) >= group.ranks)
            names, self._free = self._free[: group.ranks], self._free[group.ranks :]
        try:
            yield {VISIBLE: ",".join(names)}
        finally:
            with self._changed:
                self._free += names
                self._changed.notify_all()
