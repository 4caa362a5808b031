"""A warm worker: started when it is first needed, called again and again, and replaced after its death."""

from collections.abc import Mapping
from pathlib import Path
from threading import Lock
from typing import Any

from deepstack_harness.workers.limits import Limits
from deepstack_harness.workers.outcomes import CallResult, EndKind, WorkerEnd
from deepstack_harness.workers.profiles import InForce, SandboxProfile
from deepstack_harness.workers.remote import Remote, Result
from deepstack_harness.workers.worker import Closing, OnFact, Worker


class WarmWorker(Closing):
    """A worker process that serves call after call; where a call ended it, the next one starts another.

    One thread calls; any thread may call `stop`, after which no other process is started.
    """

    def __init__(
        self,
        limits: Limits | None = None,
        *,
        preload: str | None = None,
        environment: Mapping[str, str | None] | None = None,
        interpreter: str | None = None,
        folder: Path | None = None,
        sandbox: SandboxProfile | None = None,
    ) -> None:
        """Start no process yet; the arguments are those of `Worker`."""
        self._limits = limits
        self._options: dict[str, Any] = {
            "preload": preload, "environment": environment, "interpreter": interpreter, "folder": folder,
            "sandbox": sandbox,
        }  # fmt: skip
        self._worker: Worker | None = None
        self._stopped = False
        self._lock = Lock()
        self.starts = 0
        """Number of processes that were started; what an earlier one kept in memory is lost."""
        self.ends = 0
        """Number of processes that ended by themselves, or had to be ended."""

    @property
    def alive(self) -> bool:
        """True while a process runs, or starts."""
        return self._worker is not None and self._worker.ended is None

    @property
    def pid(self) -> int | None:
        """Process id; None where no process was waited for."""
        return self._worker.pid if self._worker is not None else None

    @property
    def in_force(self) -> InForce:
        """The parts of the sandbox of the process that runs; none before it is ready."""
        return self._worker.in_force if self._worker is not None else InForce()

    def launch(self) -> None:
        """Start a process where none is alive, without waiting until it is ready."""
        self._live_worker()

    def start(self) -> WorkerEnd | None:
        """Wait until a process can be called; return its end where it cannot."""
        worker = self._live_worker()
        return WorkerEnd(EndKind.STOPPED, phase="the start") if worker is None else worker.start()

    def call(
        self,
        target: str | Remote[Result],
        arguments: Mapping[str, Any] | None = None,
        *,
        timeout_s: float | None = None,
        on_fact: OnFact | None = None,
    ) -> CallResult[Result]:
        """Call a function as `Worker.call` does, in another process where an earlier call ended the last one.

        Raises `MachineError` where no process can be started.
        """
        worker = self._live_worker()
        if worker is None:
            return WorkerEnd(EndKind.STOPPED, phase="the start")
        result = worker.call(target, arguments, timeout_s=timeout_s, on_fact=on_fact)
        if isinstance(result, WorkerEnd):
            self.ends += 1
            worker.close()
        return result

    def stop(self) -> None:
        """End the process without waiting, and start no other one; any thread may call this."""
        with self._lock:
            self._stopped = True
            if self._worker is not None:
                self._worker.stop()

    def close(self) -> None:
        """End the process and all that it started, and wait; the next call starts another one."""
        if self._worker is not None:
            self._worker.close()

    def _live_worker(self) -> Worker | None:
        """Return the process, a new one where the last has ended; None after `stop`."""
        with self._lock:
            if self._stopped:
                return None
            if not self.alive:
                self._worker = Worker(self._limits, **self._options)
                self.starts += 1
            return self._worker
