"""Ranks that share steps: one worker for each rank, started once, in real process groups.

A worker serves every group that has its rank: ranks 0 and 1 play the cases of two ranks, and with ranks 2
and 3 those of four.  A rank that dies or hangs ends all of them; the next case starts new workers.
"""

import atexit
import itertools
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import torch

from deepstack_harness.callers.collectives import WaitedInVain
from deepstack_harness.contract.case import Case, Observation
from deepstack_harness.errors import ExitCode, HarnessError, MachineError
from deepstack_harness.families.by_name import family_named
from deepstack_harness.play.ranks.merge import merged
from deepstack_harness.workers.limits import Limits
from deepstack_harness.workers.outcomes import (
    Answered,
    CallResult,
    RaisedInWorker,
    Stopped,
    TimedOut,
    WorkerEnd,
)
from deepstack_harness.workers.worker import Worker

CASE_S = 180.0
"""Seconds for one case: a tiny decoder takes 0.1 uncompiled, and a few with aot_eager."""
_LIMITS = Limits(start_s=180.0, call_s=None)
"""A start imports torch, which takes 3 s on an idle machine; all ranks do so at the same time."""
_WORK = "deepstack_harness.play.ranks.worker"
_Kind = TypeVar("_Kind", bound=CallResult)


class RanksLost(Exception):
    """Ranks that gave no observation: their numbers, how that came about, and what they printed."""

    def __init__(self, ranks: Sequence[int], how: str, outputs: Sequence[str]) -> None:
        super().__init__(how)
        self.ranks = ranks
        self.outputs = outputs


class RankPool:
    """Pool of rank workers; it grows to the largest number of ranks that a case asked for."""

    def __init__(self, case_s: float = CASE_S) -> None:
        """Start no worker before the first case; each case is given `case_s` seconds."""
        self.case_s = case_s
        self._workers: list[Worker] = []
        self._folder = tempfile.TemporaryDirectory(prefix="deepstack-")
        self._numbers = itertools.count()
        self._group: tuple[int, bool, float] | None = None
        self._meeting = ""
        atexit.register(self.close)

    @property
    def pids(self) -> list[int | None]:
        """Process ids in the order of the ranks."""
        return [worker.pid for worker in self._workers]

    def play(self, case: Case) -> Observation:
        """Play a case and return what its ranks saw, as one observation.

        Where a rank dies, hangs, or raises what is no fact of a step, the observation has no steps and an
        error with that rank's output.  Raises `UsageError` and `MachineError` where all ranks raise it.
        """
        _check_machine(case)
        try:
            return _observation_of(self._call_ranks(case))
        except RanksLost as lost:
            self.close()
            return _not_played(case, _told(case, lost))
        except HarnessError:  # raised by all ranks alike: they can go on
            raise
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End all workers and everything they started."""
        for worker in self._workers:
            worker.stop()
        for worker in self._workers:
            worker.close()
        self._workers.clear()
        self._group = None

    def _call_ranks(self, case: Case) -> list[CallResult]:
        meeting = self._meeting_of(case)
        self._start(case.arm.ranks)
        shared = {"case": msgspec.to_builtins(case), "meeting": meeting, "limit_s": self.case_s}
        return _call_all(self._workers[: case.arm.ranks], shared, self.case_s)

    def _start(self, ranks: int) -> None:
        new = [
            Worker(_LIMITS, preload=_WORK, environment=_LOOPBACK) for _ in range(len(self._workers), ranks)
        ]
        self._workers += new
        for rank, worker in enumerate(self._workers):
            end = worker.start()
            if end is not None:
                raise RanksLost([rank], end.sentence, [end.output])

    def _meeting_of(self, case: Case) -> str:
        """Return the init_method of the group; reused while ranks, device and time limit stay the same."""
        group = (case.arm.ranks, _on_gpu(case), self.case_s)
        if group != self._group:
            if _on_gpu(case):
                self.close()  # NCCL's groups cannot be left by one rank at a time
            self._meeting = (Path(self._folder.name) / f"meeting-{next(self._numbers)}").as_uri()
            self._group = group
        return self._meeting


def _call_all(workers: Sequence[Worker], arguments: dict[str, Any], seconds: float) -> list[CallResult]:
    """Call all ranks at the same time.  Where a worker ends, stop the others: they would wait for it."""
    with ThreadPoolExecutor(len(workers)) as threads:
        calls = [
            threads.submit(worker.call, f"{_WORK}:play", {**arguments, "rank": rank}, seconds=seconds)
            for rank, worker in enumerate(workers)
        ]
        try:
            for call in as_completed(calls):
                # Ranks that hang time out together; stopping the others would hide that they hang too.
                if isinstance(call.result(), WorkerEnd) and not isinstance(call.result(), TimedOut):
                    break
        finally:
            for worker, call in zip(workers, calls, strict=True):
                if not call.done():
                    worker.stop()
    return [call.result() for call in calls]


def _observation_of(results: Sequence[CallResult]) -> Observation:
    """Merge what the ranks saw.  Raises `RanksLost`, or the error about the case that all of them raised."""
    raised, ended = _of_kind(results, RaisedInWorker), _of_kind(results, WorkerEnd)
    if ended:
        at_fault = {rank: end for rank, end in ended.items() if not isinstance(end, Stopped)} or ended
        how = next(iter(at_fault.values())).sentence
        raise RanksLost(list(at_fault), how, [end.output for end in at_fault.values()])
    if len(raised) == len(results) and raised[0].exit_code in {ExitCode.USAGE, ExitCode.MACHINE}:
        raise raised[0].as_error
    if raised:
        # A rank that waited in vain did so for another one, which failed otherwise.
        rank = min(raised, key=lambda rank: (raised[rank].type == WaitedInVain.__name__, rank))
        error = raised[rank]
        raise RanksLost([rank], f"raised {error.type}: {error.message}", [error.output])
    played = [msgspec.convert(result.value, Observation) for result in _of_kind(results, Answered).values()]
    return merged(played, range(len(played)))


def _of_kind(results: Sequence[CallResult], kind: type[_Kind]) -> dict[int, _Kind]:
    return {rank: result for rank, result in enumerate(results) if isinstance(result, kind)}


@cache
def rank_pool() -> RankPool:
    """Return the pool of this process; it ends with this process."""
    return RankPool()


def _told(case: Case, lost: RanksLost) -> str:
    """Return what went wrong, and the output of the ranks at fault."""
    who = f"rank{'s' if len(lost.ranks) > 1 else ''} {', '.join(map(str, lost.ranks))} of {case.arm.ranks}"
    printed = [
        f"rank {rank} printed: {output.strip() or 'nothing'}"
        for rank, output in zip(lost.ranks, lost.outputs, strict=True)
    ]
    return "\n".join([f"{who}: {lost}", *printed])


def _check_machine(case: Case) -> None:
    count = torch.cuda.device_count()
    if _on_gpu(case) and count < case.arm.ranks:
        raise MachineError(
            f"arm {case.arm.name} on {case.device} needs a GPU for each of {case.arm.ranks} ranks, "
            f"torch sees {count}; use --device cpu"
        )


def _on_gpu(case: Case) -> bool:
    return case.device.startswith("cuda")


def _not_played(case: Case, why: str) -> Observation:
    family = family_named(case.family)
    return Observation(
        dtype=case.dtype, device=case.device, levels=family.levels, hidden=family.hidden,
        torch=str(torch.__version__), steps=(), routed=family.routed, error=why,
    )  # fmt: skip


# Ranks of one machine meet on its loopback device, whatever the machine's name resolves to.
_LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"} if sys.platform == "linux" else {}
