"""Prove trials in threads, each of which judges what a warm worker of its own plays."""

import time
from collections.abc import Generator, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from queue import SimpleQueue

from deepstack_harness.errors import HarnessError
from deepstack_harness.fuzzing.player import InProcessPlayer, WorkerPlayer
from deepstack_harness.selftest.prove import prove_one
from deepstack_harness.selftest.trials import Proof, Trial

_STEP_S = 300.0
"""Seconds for one step: the first one of a session compiles."""


def prove(trials: Iterable[Trial], workers: int, *, step_s: float = _STEP_S) -> Generator[Proof]:
    """Yield a proof of each trial as soon as it is known; with 0 workers played in this process, in order."""
    if not workers:
        here = InProcessPlayer()
        yield from (prove_one(trial, here) for trial in trials)
        return
    players, threads = [WorkerPlayer(step_s=step_s) for _ in range(workers)], ThreadPoolExecutor(workers)
    idle: SimpleQueue[WorkerPlayer] = SimpleQueue()
    try:
        for player in players:
            idle.put(player)
        asked = [threads.submit(_prove, idle, trial) for trial in trials]
        yield from (done.result() for done in as_completed(asked))
    finally:
        threads.shutdown(wait=False, cancel_futures=True)
        for player in players:
            player.stop()
        threads.shutdown()
        for player in players:
            player.close()


def _prove(idle: "SimpleQueue[WorkerPlayer]", trial: Trial) -> Proof:
    """Prove a trial with the player that is idle next; an error is a proof that failed, and says so."""
    player, start = idle.get(), time.perf_counter()
    try:
        return prove_one(trial, player)
    except HarnessError as error:
        return Proof(trial, (), 0, time.perf_counter() - start, detail=f"no proof: {error}")
    finally:
        idle.put(player)
