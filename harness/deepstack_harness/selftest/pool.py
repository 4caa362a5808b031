"""Prove trials in worker processes, each of which imports torch once."""

from collections.abc import Generator, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from queue import SimpleQueue
from threading import Lock

import msgspec

from deepstack_harness.catalogue.data_files import hypothesis_storage
from deepstack_harness.selftest.trials import Proof, Trial
from deepstack_harness.workers.limits import Limits
from deepstack_harness.workers.outcomes import Answered, RaisedInWorker, WorkerEnd
from deepstack_harness.workers.worker import Worker

LIMITS = Limits(start_s=300.0, call_s=900.0)
"""Limits of a worker; a call is one hunt, the longest of which takes a minute on an idle machine."""
_WORK = "deepstack_harness.selftest.worker"


def prove(trials: Iterable[Trial], workers: int, limits: Limits = LIMITS) -> Generator[Proof]:
    """Yield a proof of each trial as soon as it is known; with 0 workers in this process, in order."""
    if not workers:
        from deepstack_harness.selftest.worker import prove_one

        yield from map(prove_one, trials)
        return
    provers, threads = [_Prover(limits) for _ in range(workers)], ThreadPoolExecutor(workers)
    idle: SimpleQueue[_Prover] = SimpleQueue()
    try:
        for prover in provers:
            idle.put(prover)
        asked = [threads.submit(_prove, idle, trial) for trial in trials]
        yield from (done.result() for done in as_completed(asked))
    finally:
        threads.shutdown(wait=False, cancel_futures=True)
        for prover in provers:
            prover.stop()
        threads.shutdown()
        for prover in provers:
            prover.close()


def _prove(idle: "SimpleQueue[_Prover]", trial: Trial) -> Proof:
    """Prove a trial with the prover that is idle next; in a thread."""
    prover = idle.get()
    try:
        return prover.prove(trial)
    finally:
        idle.put(prover)


class _Prover:
    """A warm worker that proves one trial after the other; after an end another worker is started."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._lock = Lock()
        self._stopped = False
        self._worker = self._start()

    def prove(self, trial: Trial) -> Proof:
        """Wait for the proof; where the worker raised or ended instead, the proof failed and says so."""
        with self._lock:
            if self._worker.ended is not None and not self._stopped:
                self._worker = self._start()
        result = self._worker.call(f"{_WORK}:prove", {"trial": msgspec.to_builtins(trial)})
        if isinstance(result, Answered):
            return msgspec.convert(result.value, Proof)
        return Proof(trial, (), 0, 0.0, detail=_why(result))

    def stop(self) -> None:
        """End the worker without waiting; it is not replaced."""
        with self._lock:
            self._stopped = True
            self._worker.stop()

    def close(self) -> None:
        """End the worker."""
        self._worker.close()

    def _start(self) -> Worker:
        return Worker(self._limits, preload=_WORK, environment=hypothesis_storage())


def _why(result: RaisedInWorker | WorkerEnd) -> str:
    last = result.output.strip().rpartition("\n")[2]
    printed = f"; printed at the end: {last}" if last and isinstance(result, WorkerEnd) else ""
    return f"the worker gave no proof: {result.sentence}{printed}"
