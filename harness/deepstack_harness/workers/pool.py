"""Items that several warm workers share, one thread for each worker."""

from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from threading import Event, Lock
from typing import Protocol, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class Stoppable(Protocol):
    """A worker, or what has one."""

    def stop(self) -> None:
        """Let the call under way return at once, and every later call too; called from any thread."""
        ...


Worker = TypeVar("Worker", bound=Stoppable)


def map_items(
    work: Callable[[Worker, Item], Iterable[Result]],
    items: Iterable[Item],
    workers: Sequence[Worker],
    *,
    in_order: bool = False,
) -> Generator[Result]:
    """Yield all results of `work(worker, item)`; every worker takes the next item in a thread of its own.

    A result is yielded as soon as it exists; with `in_order`, those of an item when the item and all before
    it are finished. `items` is read by one thread at a time. What `work` or `items` raises is raised here.
    Then, on Ctrl-C, and where the iterator is closed before its end, every worker is stopped, and all
    threads have returned when this does. Otherwise the workers can be used again; the caller closes them.
    """
    numbered, lock, stopped = iter(enumerate(items)), Lock(), Event()
    news: SimpleQueue[tuple[int, list[Result]] | BaseException | None] = SimpleQueue()

    def serve(worker: Worker) -> None:
        try:
            while not stopped.is_set():
                with lock:
                    entry = next(numbered, None)
                if entry is None:
                    break
                results = work(worker, entry[1])
                for batch in [list(results)] if in_order else ([result] for result in results):
                    news.put((entry[0], batch))
                    if stopped.is_set():
                        break
            news.put(None)
        except BaseException as error:  # noqa: BLE001  # the thread that reads the queue raises it
            news.put(error)

    with ThreadPoolExecutor(max(1, len(workers))) as threads:
        try:
            for worker in workers:
                threads.submit(serve, worker)
            yield from _received(news, len(workers), in_order=in_order)
        except BaseException:
            stopped.set()
            for worker in workers:
                worker.stop()
            raise


def _received(
    news: "SimpleQueue[tuple[int, list[Result]] | BaseException | None]", threads: int, *, in_order: bool
) -> Generator[Result]:
    """Yield results until the threads have finished; raise the first exception of one."""
    held: dict[int, list[Result]] = {}
    following = 0
    while threads:
        received = news.get()
        if isinstance(received, BaseException):
            raise received
        if received is None:
            threads -= 1
        elif in_order:
            held[received[0]] = received[1]
            while following in held:
                yield from held.pop(following)
                following += 1
        else:
            yield from received[1]
