"""Cases whose ranks share steps: a worker for each rank, started once, in real process groups.

`RankPool` plays a case: every rank plays its part in `play_rank`, and `merged` makes one observation of what
all ranks observed. A worker serves every group that has its rank: ranks 0 and 1 play the cases of two ranks,
and with ranks 2 and 3 those of four. A rank that dies or hangs ends all of them, since the others wait for
it; the next case starts new workers.
"""

import atexit
import faulthandler
import itertools
import sys
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from deepstack_harness.catalogue.registry import family_named
from deepstack_harness.contract.case import Case
from deepstack_harness.contract.observation import Observation, Raised, StepFacts
from deepstack_harness.contract.protocols import payload_width
from deepstack_harness.errors import ExitCode, HarnessError, MachineError
from deepstack_harness.models.engine import CollectiveTimeout, PeerFailed
from deepstack_harness.play.model import factory_of, shared_model
from deepstack_harness.play.observe import play as play_steps
from deepstack_harness.workers.limits import Limits
from deepstack_harness.workers.outcomes import (
    Answered,
    CallResult,
    EndKind,
    RaisedInWorker,
    WorkerEnd,
)
from deepstack_harness.workers.pool import map_items
from deepstack_harness.workers.remote import Remote
from deepstack_harness.workers.worker import Worker


def merged(observations: Sequence[Observation], ranks: Sequence[int]) -> Observation:
    """Return the first observation with the shards of all ranks and their worst figures.

    `ranks` are the numbers of the ranks, in the order of `observations`. Everything else must be the same on
    every rank; where it is not, `error` of the observation names the step.
    """
    steps = zip(*(observation.steps for observation in observations), strict=True)
    errors = [observation.error for observation in observations if observation.error]
    graphs = [observation.graphs for observation in observations if observation.graphs]
    return replace(
        observations[0],
        steps=tuple(_merged_step(facts, ranks) for facts in steps),
        graphs=max(graphs, key=lambda facts: facts.graphs + facts.breaks + facts.limit_hit, default=None),
        error=errors[0] if errors else _disagreement(observations, ranks),
    )


def _merged_step(facts: Sequence[StepFacts], ranks: Sequence[int]) -> StepFacts:
    attended = [step.attended for step in facts if step.attended is not None]
    distances = [step.distances for step in facts if step.distances]
    return replace(
        facts[0],
        raised=_cause(facts, ranks),
        distances=max(distances, key=lambda distance: distance.eager, default=None),
        graphs=max(step.graphs for step in facts),
        attended=max(attended, default=None),
        shards=tuple(shard for step in facts for shard in step.shards),
    )


def _cause(facts: Sequence[StepFacts], ranks: Sequence[int]) -> Raised | None:
    """Return the error of the first rank that failed by itself, not because another rank had failed."""
    errors = [(rank, step.raised) for rank, step in zip(ranks, facts, strict=True) if step.raised]
    if not errors:
        return None
    own = [(rank, error) for rank, error in errors if error.type != PeerFailed.__name__]
    rank, error = (own or errors)[0]
    return replace(error, message=f"rank {rank}: {error.message}")


def _disagreement(observations: Sequence[Observation], ranks: Sequence[int]) -> str | None:
    """Name the first step in which the buffer of a rank behaved differently from that of the first rank."""
    for rank, observation in zip(ranks[1:], observations[1:], strict=True):
        for number, (first, facts) in enumerate(
            zip(observations[0].steps, observation.steps, strict=True), 1
        ):
            if _comparable(first) != _comparable(facts):
                step = f"step {number} '{facts.step}', where both were called in the same way"
                return f"the buffer of rank {rank} was another than that of rank {ranks[0]} in {step}"
    return None


def _comparable(facts: StepFacts) -> tuple[object, ...]:
    """Return the facts that sharding cannot change: the buffer is whole on every rank."""
    answer = facts.answer
    answered = answer and (answer.structure, answer.rows, answer.hidden, answer.dtypes)
    return answered, facts.capacity, facts.generation, facts.unavailable


CASE_TIMEOUT_S = 180.0
"""Timeout of one case in seconds: a tiny decoder takes 0.1 uncompiled, and a few with aot_eager."""
_LIMITS = Limits(start_s=180.0, call_s=None)
"""A start imports torch, which takes 3 s on an idle machine; all ranks do so at the same time."""
PLAY_RANK = Remote("deepstack_harness.play.ranks:play_rank", Observation)
_Kind = TypeVar("_Kind", bound=CallResult)


class RanksLost(Exception):
    """Ranks that returned no observation: their numbers, how that came about, and what they printed."""

    def __init__(self, ranks: Sequence[int], how: str, outputs: Sequence[str]) -> None:
        super().__init__(how)
        self.ranks = ranks
        self.outputs = outputs


class RankPool:
    """Pool of rank workers; it grows to the largest number of ranks that a case has had."""

    def __init__(self, timeout_s: float = CASE_TIMEOUT_S) -> None:
        """Start no worker before the first case; `timeout_s` is the timeout of a case."""
        self.timeout_s = timeout_s
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
        error with that rank's output. Raises `UsageError` and `MachineError` where all ranks raise it.
        """
        ranks, count = case.arm.ranks, torch.cuda.device_count()
        if _on_gpu(case) and count < ranks:
            raise MachineError(
                f"arm {case.arm.name} on {case.device} needs a GPU for each of {ranks} ranks, "
                f"torch sees {count}; use --device cpu"
            )
        try:
            shared = {"case": case, "meeting": self._meeting_of(case), "timeout_s": self.timeout_s}
            self._start(ranks)
            return _observation_of(_call_all(self._workers[:ranks], shared, self.timeout_s))
        except RanksLost as lost:
            self.close()
            family = family_named(case.family)
            return Observation(
                dtype=case.dtype, device=case.device, levels=family.levels, hidden=payload_width(family),
                torch=str(torch.__version__), steps=(), routed=family.routed,
                error=_error_of(case, lost),
            )  # fmt: skip
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

    def _start(self, ranks: int) -> None:
        new = [
            Worker(_LIMITS, preload=PLAY_RANK.module, environment=_LOOPBACK)
            for _ in range(len(self._workers), ranks)
        ]
        self._workers += new
        for rank, worker in enumerate(self._workers):
            end = worker.start()
            if end is not None:
                raise RanksLost([rank], end.sentence, [end.output])

    def _meeting_of(self, case: Case) -> str:
        """Return the init_method of the group; reused while ranks, device and time limit stay the same."""
        group = (case.arm.ranks, _on_gpu(case), self.timeout_s)
        if group != self._group:
            if _on_gpu(case):
                self.close()  # NCCL's groups cannot be left by one rank at a time
            self._meeting = (Path(self._folder.name) / f"meeting-{next(self._numbers)}").as_uri()
            self._group = group
        return self._meeting


def _call_all(workers: Sequence[Worker], arguments: dict[str, Any], timeout_s: float) -> list[CallResult]:
    """Call all ranks at the same time. Where a worker ends, stop the others: they would wait for it."""

    def call(_: Worker, rank: int) -> Iterator[tuple[int, CallResult]]:
        yield rank, workers[rank].call(PLAY_RANK, {**arguments, "rank": rank}, timeout_s=timeout_s)

    results: dict[int, CallResult] = {}
    for rank, result in map_items(call, range(len(workers)), workers):
        results[rank] = result
        # Ranks that hang time out together; stopping the others would hide that they hang too.
        if isinstance(result, WorkerEnd) and result.kind is not EndKind.TIMED_OUT:
            for worker in workers:
                worker.stop()
    return [results[rank] for rank in range(len(workers))]


def _observation_of(results: Sequence[CallResult]) -> Observation:
    """Merge what the ranks saw. Raises `RanksLost`, or the error about the case that all of them raised."""
    raised, ended = _of_kind(results, RaisedInWorker), _of_kind(results, WorkerEnd)
    if ended:
        at_fault = {rank: end for rank, end in ended.items() if end.kind is not EndKind.STOPPED} or ended
        how = next(iter(at_fault.values())).sentence
        raise RanksLost(list(at_fault), how, [end.output for end in at_fault.values()])
    if len(raised) == len(results) and raised[0].exit_code in {ExitCode.USAGE, ExitCode.MACHINE}:
        raise raised[0].as_error
    if raised:
        # A rank that waited in vain did so for another one, which failed otherwise.
        rank = min(raised, key=lambda rank: (raised[rank].type == CollectiveTimeout.__name__, rank))
        error = raised[rank]
        raise RanksLost([rank], f"raised {error.type}: {error.message}", [error.output])
    played = [result.value for result in _of_kind(results, Answered).values()]
    return merged(played, range(len(played)))


def _of_kind(results: Sequence[CallResult], kind: type[_Kind]) -> dict[int, _Kind]:
    return {rank: result for rank, result in enumerate(results) if isinstance(result, kind)}


@cache
def rank_pool() -> RankPool:
    """Return the pool of this process; it ends with this process."""
    return RankPool()


def _error_of(case: Case, lost: RanksLost) -> str:
    """Return the reason and the output of the ranks at fault."""
    who = f"rank{'s' if len(lost.ranks) > 1 else ''} {', '.join(map(str, lost.ranks))} of {case.arm.ranks}"
    printed = [
        f"rank {rank} printed: {output.strip() or 'nothing'}"
        for rank, output in zip(lost.ranks, lost.outputs, strict=True)
    ]
    return "\n".join([f"{who}: {lost}", *printed])


def _on_gpu(case: Case) -> bool:
    return case.device.startswith("cuda")


# Ranks of one machine meet on its loopback device, whatever the machine's name resolves to.
_LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"} if sys.platform == "linux" else {}


_COLLECTIVE_SHARE = 0.4
"""Share of the time limit after which a rank stops waiting for another one, and raises."""
_DUMP_SHARE = 0.9
"""Share of the time limit after which a rank prints its stack, which shows where it hangs."""


def play_rank(case: Case, rank: int, meeting: str, timeout_s: float) -> Observation:
    """Play a case as `rank`.

    `meeting` is the `file://` init_method of the process group, another one for every new group. After
    `timeout_s` seconds the parent no longer waits for the result.
    """
    faulthandler.dump_traceback_later(timeout_s * _DUMP_SHARE, file=sys.stderr)
    try:
        _join(meeting, rank, case.arm.ranks, timeout_s, gpu=_on_gpu(case))
        if _on_gpu(case):
            case = replace(case, device=f"cuda:{rank}")
        model = shared_model(case.family, case.dtype, case.device, case.seed)
        return play_steps(case, model, factory_of(case.buffer))
    except Exception as error:
        if not isinstance(error, HarnessError):
            traceback.print_exc()
        raise
    finally:
        faulthandler.cancel_dump_traceback_later()


@lru_cache(maxsize=1)  # a group that this process is in is not joined again
def _join(meeting: str, rank: int, ranks: int, timeout_s: float, *, gpu: bool) -> None:
    """Leave the process group that this process is in, and join another one as `rank`."""
    if dist.is_initialized():
        dist.destroy_process_group()
    if gpu:
        torch.cuda.set_device(rank)
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if gpu else "gloo",
        init_method=meeting,
        rank=rank,
        world_size=ranks,
        timeout=timedelta(seconds=timeout_s * _COLLECTIVE_SHARE),
    )
