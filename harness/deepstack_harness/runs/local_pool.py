"""Play groups on this machine: each thread of a pool plays one group in a worker of its own."""

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
from deepstack_harness.workers.limits import Limits
from deepstack_harness.workers.worker import Worker

_News = CaseResult | BaseException | None
"""The result of a case, an error of ours, or None: a group has ended."""


class LocalPool:
    """Worker pool of this machine; on CUDA each group has GPUs of its own."""

    def __init__(self, threads: int, limits: Limits, gpus: Sequence[str] = ()) -> None:
        """Start no thread yet; `gpus` are names for CUDA_VISIBLE_DEVICES, empty if no group runs on CUDA."""
        self._threads = threads
        self._limits = limits
        self._gpus = FreeGpus(gpus)
        self._news: SimpleQueue[_News] = SimpleQueue()
        self._workers: list[Worker] = []
        self._stopped = Event()
        self._lock = Lock()

    def play(self, groups: Sequence[Group]) -> Generator[CaseResult]:
        """Yield the result of every case as it ends; closing the iterator ends every worker."""
        with tempfile.TemporaryDirectory(prefix="deepstack-run-", ignore_cleanup_errors=True) as folder:
            # A cache for the workers of this run alone: one that an earlier run filled hides compiles.
            cache = {"TORCHINDUCTOR_CACHE_DIR": folder}
            with ThreadPoolExecutor(self._threads) as threads, self._stopping_all():
                for group in groups:
                    threads.submit(self._play, group, cache)
                yield from self._ended_cases(len(groups))

    def _ended_cases(self, open_groups: int) -> Iterator[CaseResult]:
        while open_groups:
            news = self._news.get()
            if isinstance(news, BaseException):
                raise news
            if news is None:
                open_groups -= 1
            else:
                yield news

    @contextmanager
    def _stopping_all(self) -> Iterator[None]:
        try:
            yield
        finally:
            with self._lock:
                self._stopped.set()
                for worker in self._workers:
                    worker.stop()

    def _play(self, group: Group, cache: Mapping[str, str]) -> None:
        """Play a group, in a thread of the pool."""
        try:
            with self._gpus.taken(group) as seen:
                self._play_seeing(group, {**cache, **seen})
            self._news.put(None)
        except BaseException as error:  # noqa: BLE001  # the thread that reads the queue raises it
            self._news.put(error)

    def _play_seeing(self, group: Group, environment: Mapping[str, str]) -> None:
        if self._stopped.is_set():
            return
        with closing(play_group(group, self._limits, environment, self._started)) as ended:
            for result in ended:
                if self._stopped.is_set():
                    return
                self._news.put(result)

    def _started(self, worker: Worker) -> None:
        with self._lock:
            self._workers.append(worker)
            if self._stopped.is_set():
                worker.stop()


class FreeGpus:
    """Lender of GPUs: a group gets as many as it has ranks, each GPU for one group at a time."""

    def __init__(self, names: Sequence[str]) -> None:
        """Begin with all of them free."""
        self._free = list(names)
        self._changed = Condition()

    @contextmanager
    def taken(self, group: Group) -> Iterator[dict[str, str]]:
        """Wait for the GPUs of a group; yield the environment of a process that sees these alone."""
        if group.device != "cuda":  # every process sees a GPU that was named, such as cuda:1
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
