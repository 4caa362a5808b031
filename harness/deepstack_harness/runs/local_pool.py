"""Groups played by local workers: one thread waits for each process, one process runs in each thread."""

import tempfile
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from queue import SimpleQueue
from threading import Condition, Event, Lock

from deepstack_harness.machine.gpus import seeing
from deepstack_harness.results.case_result import CaseResult
from deepstack_harness.runs.groups import Group
from deepstack_harness.runs.play_group import play_group
from deepstack_harness.runs.process import GroupProcess, Limits

Said = CaseResult | BaseException | None
"""A case that ended, an error of ours, or None: a group has ended."""


class LocalPool:
    """Plays groups on this machine; on CUDA each worker has a GPU of its own."""

    def __init__(self, workers: int, limits: Limits, gpus: Sequence[str] = ()) -> None:
        """`gpus` are names for CUDA_VISIBLE_DEVICES, or none where nothing runs on CUDA."""
        self._workers = workers
        self._limits = limits
        self._gpus = FreeGpus(gpus)
        self._said: SimpleQueue[Said] = SimpleQueue()
        self._running: list[GroupProcess] = []
        self._stopped = Event()
        self._lock = Lock()

    def play(self, groups: Sequence[Group]) -> Generator[CaseResult]:
        """Play every case, each result as it comes; closing the iterator ends every process."""
        with tempfile.TemporaryDirectory(prefix="deepstack-run-", ignore_cleanup_errors=True) as folder:
            # Shared by the processes of this run alone: one that is warm from an earlier run hides compiles.
            cache = {"TORCHINDUCTOR_CACHE_DIR": folder}
            with ThreadPoolExecutor(self._workers) as threads, self._ending_all():
                for group in groups:
                    threads.submit(self._play, group, cache)
                yield from self._heard(len(groups))

    def _heard(self, open_groups: int) -> Iterator[CaseResult]:
        while open_groups:
            said = self._said.get()
            if isinstance(said, BaseException):
                raise said
            if said is None:
                open_groups -= 1
            else:
                yield said

    @contextmanager
    def _ending_all(self) -> Iterator[None]:
        try:
            yield
        finally:
            with self._lock:
                self._stopped.set()
                for process in self._running:
                    process.end()

    def _play(self, group: Group, cache: Mapping[str, str]) -> None:
        """In a thread of the pool."""
        try:
            with self._gpus.taken(group) as seen:
                self._play_seeing(group, {**cache, **seen})
            self._said.put(None)
        except BaseException as error:  # noqa: BLE001  # the thread that reads raises it
            self._said.put(error)

    def _play_seeing(self, group: Group, environment: Mapping[str, str]) -> None:
        if self._stopped.is_set():
            return
        with closing(play_group(group, self._limits, environment, self._started)) as ended:
            for result in ended:
                if self._stopped.is_set():
                    return
                self._said.put(result)

    def _started(self, process: GroupProcess) -> None:
        with self._lock:
            self._running.append(process)
            if self._stopped.is_set():
                process.end()


class FreeGpus:
    """Lends every group as many GPUs as it has ranks, each to one group at a time."""

    def __init__(self, names: Sequence[str]) -> None:
        """All of them are free."""
        self._free = list(names)
        self._changed = Condition()

    @contextmanager
    def taken(self, group: Group) -> Iterator[dict[str, str]]:
        """Wait for them; answers the environment of a process that sees these alone."""
        if group.device != "cuda":  # a GPU that was named is seen by all
            yield {}
            return
        with self._changed:
            self._changed.wait_for(lambda: len(self._free) >= group.ranks)
            names, self._free = self._free[: group.ranks], self._free[group.ranks :]
        try:
            yield seeing(names)
        finally:
            with self._changed:
                self._free += names
                self._changed.notify_all()
