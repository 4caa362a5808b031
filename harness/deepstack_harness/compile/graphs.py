"""Record what a call does and replay it without its Python: CUDA graphs, and their emulation on a CPU.

On CUDA these are CUDA graphs (public API `torch.cuda.graph`). On a CPU operations are recorded
(`torch_compat.modes.OpRecorder`), and done again on the very tensors that they were recorded with, in storage
that their owner may have left long ago; results are copied into the tensors that the capture gave out. What
an engine's own runner replays here (SGLang's graphs, a function that JAX has compiled) is such a recording.

The emulation has no streams and no kernels, so that nothing runs at the same time or in another order. It has
no memory pool: a result is not written over by another graph. Random numbers are drawn anew in each replay.
An operation that would wait for the device is refused by its tag; a copy to the host is not, because nothing
shows it on a CPU. A compiled call is repeated with its Python. JAX's arrays are values: its arguments are
copied before a replay, and its results after it.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor
from typing_extensions import override

from deepstack_harness.compile.torch_compat.modes import OpRecorder
from deepstack_harness.compile.watch_captured import capturing as watched_capture
from deepstack_harness.compile.watch_captured import replaying as watched_replay
from deepstack_harness.errors import NotMeasured
from deepstack_harness.models.layers import around_attention

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)


class Graph(ABC):
    """Recorded once, on tensors that stay where they are; replayed as often as wanted.

    It counts its own replays by an operation that it has recorded itself, so that a
    replay in which nothing happened is noticed.
    """

    runs_at_capture = True
    """Whether what is recorded is done as well; CUDA does it at the first replay."""

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
        self.again()
        done = int(self._replays) - before
        if done != 1:
            raise NotMeasured(f"a replay did the recorded operations {done} times, not once")

    @abstractmethod
    def again(self) -> None:
        """Do again what was recorded, without waiting to see that it was done: for clocks."""

    @abstractmethod
    def _recording(self) -> AbstractContextManager[object]: ...


class CpuGraph(Graph):
    """Recorded operations and callables in one order.

    A compiled call cannot run under a dispatch mode ("non-infra torch dispatch mode present"), so the
    decoder's call is recorded as one callable on static tensors, in one piece, whether its graph would
    break at attention or not.
    """

    def __init__(self) -> None:
        """Start without a recording."""
        super().__init__(torch.device("cpu"))
        self._tape = OpRecorder()

    @override
    def record(self, work: Callable[[], T]) -> T:
        with self._tape:
            result = work()
        self.allocated = self._tape.allocated
        return result

    @override
    def call(self, work: Callable[[], object]) -> None:
        work()
        self._tape.append(work)

    @override
    def at_replay(self, work: Callable[[], object]) -> None:
        self._tape.append(work)

    @override
    def _recording(self) -> AbstractContextManager[object]:
        return watched_capture(self)

    @override
    def again(self) -> None:
        watched_replay(self)
        self._tape.replay()


class CpuGraphs:
    """Graphs of one session on a CPU."""

    def warming_up(self) -> AbstractContextManager[None]:
        """Do nothing: a CPU needs no warm-up."""
        return nullcontext()

    def graph(self, *, whole: bool = False) -> CpuGraph:
        """Return a new graph, in which nothing is recorded yet; it never breaks at attention."""
        return CpuGraph()


class CudaGraphs:
    """Graphs of one session, in one memory pool and on one stream, as an engine's are.

    A result in the pool lasts until another graph is replayed, except what a `Captured` holds.
    """

    def __init__(self, device: torch.device, *, broken_at_attention: bool) -> None:
        """Take the device; opaque attention, where the family has it, may run between pieces of a graph."""
        self._device = device
        self._broken_at_attention = broken_at_attention
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    @contextmanager
    def warming_up(self) -> Iterator[None]:
        """Switch to the side stream that is captured later, as torch's notes on CUDA graphs require."""
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            yield
        current.wait_stream(self._stream)

    def graph(self, *, whole: bool = False) -> "CudaGraph":
        """Return a new graph, in which nothing is recorded yet; a `whole` one never breaks at attention."""
        capture = {"pool": self._pool, "stream": self._stream}
        broken = self._broken_at_attention and not whole
        return CudaGraph(self._device, capture, broken_at_attention=broken)


class CudaGraph(Graph):
    """Captured kernels in pieces, with Python between them: notes, and opaque attention if requested.

    What is captured does not run until the graph is replayed, so its results are not written before.
    """

    runs_at_capture = False

    def __init__(self, device: torch.device, capture: dict[str, Any], *, broken_at_attention: bool) -> None:
        """`capture` is what `torch.cuda.graph` is given for each piece."""
        super().__init__(device)
        self._device = device
        self._capture = capture
        self._broken_at_attention = broken_at_attention
        self._parts: list[Callable[[], object]] = []
        self._open = ExitStack()

    @override
    def record(self, work: Callable[[], T]) -> T:
        before = self._allocations
        result = work()
        self.allocated += self._allocations - before
        return result

    @override
    def call(self, work: Callable[[], object]) -> None:
        with around_attention(self._attend) if self._broken_at_attention else nullcontext():
            work()

    @override
    def at_replay(self, work: Callable[[], object]) -> None:
        with self._break():
            self._parts.append(work)

    @contextmanager
    @override
    def _recording(self) -> Iterator[None]:
        self._begin()
        try:
            yield
        finally:
            self._open.close()

    @override
    def again(self) -> None:
        for part in self._parts:
            part()

    def _begin(self) -> None:
        piece = torch.cuda.CUDAGraph()
        self._open.enter_context(torch.cuda.graph(piece, **self._capture))
        self._parts.append(piece.replay)

    @contextmanager
    def _break(self) -> Iterator[None]:
        """End a piece, and begin another one; what runs while this is open is in neither."""
        self._open.close()
        yield
        self._begin()

    def _attend(self, run: Callable[[], Tensor]) -> Tensor:
        """Run attention outside the graph at every replay; its output goes where the next piece reads it."""
        with self._break():
            out = run()
            self._parts.append(lambda: out.copy_(run()))
        return out

    @property
    def _allocations(self) -> int:
        return int(torch.cuda.memory_stats(self._device)["allocation.all.allocated"])


Graphs = CpuGraphs | CudaGraphs
"""Source of the graphs of one session."""


def graphs_on(device: torch.device, *, broken_at_attention: bool = False) -> Graphs:
    """Return where the graphs of one session on a device come from."""
    if device.type != "cuda":
        return CpuGraphs()
    return CudaGraphs(device, broken_at_attention=broken_at_attention)


class Recorded(NamedTuple):
    """A call that was recorded: its graph, and what it returned, which every replay writes."""

    graph: Graph
    answer: Any

    def replay(self) -> Any:  # noqa: ANN401  # of the call
        """Do again what was recorded; return the tensors of the capture with their new values."""
        self.graph.replay()
        return self.answer


class Recordings(dict[K, Recorded], Generic[K]):
    """Whole calls that were recorded, by what has to be equal in a replay: their sizes."""

    def __init__(self, graphs: Graphs | None = None) -> None:
        """Take where the graphs come from: by default the emulation."""
        super().__init__()
        self._graphs = graphs or CpuGraphs()

    def record(self, key: K, work: Callable[[], T]) -> T:
        """Run a call and record it, in place of an earlier one; return its result."""
        graph, first = self._graphs.graph(), []
        if not graph.runs_at_capture:
            with self._graphs.warming_up():
                first.append(work())
        with graph.recording():
            answer = graph.record(work)
        self[key] = Recorded(graph, answer)
        return first[0] if first else answer
