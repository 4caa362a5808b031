"""Graphs that a CPU records and replays under torch's names: substitutes for what needs a GPU."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from deepstack_harness.compile.torch_compat.modes import OpRecorder


class RecordedGraph:
    """`torch.cuda.CUDAGraph` as engines use it; operations are recorded, and replayed on their tensors."""

    def __init__(self, keep_graph: bool = False) -> None:
        self._tape: Any = OpRecorder()

    def capture_begin(self, pool: object = None, capture_error_mode: str = "global") -> None:
        self._tape.__enter__()

    def capture_end(self) -> None:
        self._tape.__exit__(None, None, None)

    def replay(self) -> None:
        self._tape.replay()


@contextmanager
def recorded(cuda_graph: RecordedGraph, pool: object = None, stream: object = None) -> Iterator[None]:
    """`torch.cuda.graph`."""
    cuda_graph.capture_begin(pool=pool)
    try:
        yield
    finally:
        cuda_graph.capture_end()


def make_recorded_callables(callables: Any, sample_args: Any, num_warmup_iters: int = 3) -> Any:  # noqa: ANN401
    """`torch.cuda.make_graphed_callables`: its result copies its inputs, and replays."""
    many = isinstance(callables, tuple)
    pairs = zip(callables, sample_args, strict=True) if many else [(callables, sample_args)]
    made = [_graphed(call, samples) for call, samples in pairs]
    return tuple(made) if many else made[0]


def _graphed(call: Any, samples: Sequence[Tensor]) -> Any:  # noqa: ANN401
    graph = torch.cuda.CUDAGraph()
    slots = [sample.clone() for sample in samples]
    run: Callable[..., Tensor] = call.forward if isinstance(call, nn.Module) else call
    with torch.cuda.graph(graph):
        out = run(*slots)

    def replayed(*inputs: Tensor) -> Tensor:
        for slot, value in zip(slots, inputs, strict=True):
            if slot.data_ptr() != value.data_ptr():
                slot.copy_(value)
        graph.replay()
        return out.detach()

    if not isinstance(call, nn.Module):
        return replayed
    call.forward = replayed
    return call


def use_recorded_graphs(monkeypatch: Any) -> None:  # noqa: ANN401
    """Put the substitutes in the places of torch's own."""
    monkeypatch.setattr(torch.cuda, "CUDAGraph", RecordedGraph)
    monkeypatch.setattr(torch.cuda, "graph", recorded)
    monkeypatch.setattr(torch.cuda, "make_graphed_callables", make_recorded_callables)


class Wrapper:
    """A callable that captures in its first call for a size, and replays in the next ones."""

    def __init__(self, runnable: Callable[..., Tensor]) -> None:
        self.runnable = runnable
        self.entries: dict[object, tuple[Any, Tensor]] = {}

    def __call__(self, size: object, *args: object, **kwargs: object) -> Tensor:
        if size is None:
            return self.runnable(*args, **kwargs)
        if size not in self.entries:
            graph: Any = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                out = self.runnable(*args, **kwargs)
            self.entries[size] = graph, out
            if not isinstance(graph, RecordedGraph):  # what a GPU captures does not run
                out.copy_(self.runnable(*args, **kwargs))
            return out
        graph, out = self.entries[size]
        graph.replay()
        return out
