"""CUDA graphs: pieces captured one after the other in one memory pool, and what runs between them as Python.

Public torch API `torch.cuda.graph` and `torch.cuda.CUDAGraph`.  What is captured
does not run until the graph is replayed, so its results are not written before.
All graphs of a session share a pool, as an engine's do: a result in it lasts until
another graph is replayed, except what is held here for as long as the graph.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any, TypeVar

import torch
from torch import Tensor
from typing_extensions import override

from deepstack_harness.arms.graph import Graph
from deepstack_harness.families.opaque import around_attention

T = TypeVar("T")


class CudaGraphs:
    """A `deepstack_harness.arms.graph.Graphs`: one memory pool and one stream for a whole session."""

    def __init__(self, device: torch.device, *, broken_at_attention: bool) -> None:
        """Take the device; opaque attention, where the family has it, may stand between pieces of a graph."""
        self._device = device
        self._broken_at_attention = broken_at_attention
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    @contextmanager
    def warming_up(self) -> Iterator[None]:
        """Switch to the side stream that is captured later, as torch's notes on CUDA graphs ask for."""
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            yield
        current.wait_stream(self._stream)

    def graph(self) -> "CudaGraph":
        """Return a new graph."""
        capture = {"pool": self._pool, "stream": self._stream}
        return CudaGraph(self._device, capture, broken_at_attention=self._broken_at_attention)


class CudaGraph(Graph):
    """Captured kernels in pieces, with Python between them: notes, and opaque attention if asked to."""

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
        answer = work()
        self.allocated += self._allocations - before
        return answer

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
    def _replay(self) -> None:
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
        """Run attention outside the graph at every replay; its answer goes where the next piece reads it."""
        with self._break():
            out = run()
            self._parts.append(lambda: out.copy_(run()))
        return out

    @property
    def _allocations(self) -> int:
        return int(torch.cuda.memory_stats(self._device)["allocation.all.allocated"])
