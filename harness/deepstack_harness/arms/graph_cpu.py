"""CUDA graphs, played on the CPU: recorded operations, and the decoder's call as one of them.

Replayed on the very tensors they were recorded with, on storage that the buffer
may have left long ago; the Python of get and clear does not run.  A compiled call
cannot run under a dispatch mode ("non-infra torch dispatch mode present"), so the
decoder's call is recorded as one callable on static tensors, in one piece,
whether its graph would break at attention or not.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TypeVar

import torch
from typing_extensions import override

from deepstack_harness.arms.graph import Graph
from deepstack_harness.torch_compat.recording import OpRecorder

T = TypeVar("T")


class CpuGraph(Graph):
    """Recorded operations and callables in one order."""

    def __init__(self) -> None:
        """Start without a recording."""
        super().__init__(torch.device("cpu"))
        self._tape = OpRecorder()

    @override
    def record(self, work: Callable[[], T]) -> T:
        with self._tape:
            answer = work()
        self.allocated = self._tape.allocated
        return answer

    @override
    def call(self, work: Callable[[], object]) -> None:
        work()
        self._tape.append(work)

    @override
    def at_replay(self, work: Callable[[], object]) -> None:
        self._tape.append(work)

    @override
    def _recording(self) -> AbstractContextManager[object]:
        return nullcontext()

    @override
    def _replay(self) -> None:
        self._tape.replay()


class CpuGraphs:
    """A `deepstack_harness.arms.graph.Graphs`."""

    def warming_up(self) -> AbstractContextManager[object]:
        """Do nothing: a CPU needs no warm-up."""
        return nullcontext()

    def graph(self) -> CpuGraph:
        """Return a new graph."""
        return CpuGraph()
