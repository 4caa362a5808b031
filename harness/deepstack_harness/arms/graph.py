"""A captured graph, whatever the device: operations that are done again without the Python around them."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol, TypeVar

import torch

from deepstack_harness.errors import NotMeasured

T = TypeVar("T")


class Graph(ABC):
    """Recorded once, on tensors that stay where they are; replayed as often as wanted.

    It counts its own replays by an operation that it has recorded itself, so that a
    replay in which nothing happened is noticed.
    """

    def __init__(self, device: torch.device) -> None:
        """Take the device; nothing is recorded yet."""
        self.allocated = 0
        """Tensors that `record` saw being allocated."""
        self._replays = torch.zeros((), dtype=torch.int64, device=device)

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Allow calls of the methods below while open; one recording for each graph."""
        with self._recording():
            self.record(lambda: self._replays.add_(1))
            yield

    @abstractmethod
    def record(self, work: Callable[[], T]) -> T:
        """Do `work` on the buffer: its operations are recorded, its allocations counted."""

    @abstractmethod
    def call(self, work: Callable[[], object]) -> None:
        """Do the decoder's `work`, compiled or not: what it does is recorded."""

    @abstractmethod
    def at_replay(self, work: Callable[[], object]) -> None:
        """Have `work` called at this place of every replay, as Python; not now."""

    def replay(self) -> None:
        """Do again what was recorded; raises `NotMeasured` where that was not done exactly once."""
        before = int(self._replays)
        self._replay()
        done = int(self._replays) - before
        if done != 1:
            raise NotMeasured(f"a replay did the recorded operations {done} times, not once")

    @abstractmethod
    def _recording(self) -> AbstractContextManager[object]: ...

    @abstractmethod
    def _replay(self) -> None: ...


class Graphs(Protocol):
    """Source of the graphs of one session."""

    def warming_up(self) -> AbstractContextManager[object]:
        """Open while the work is done once, before it is captured."""
        ...

    def graph(self) -> Graph:
        """Return a new graph, in which nothing is recorded yet."""
        ...
