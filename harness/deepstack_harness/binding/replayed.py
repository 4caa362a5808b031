"""Emulate FULL CUDA graphs on any device: the outer forward is captured once for each size.

An engine wraps the outer forward in a FULL graph, so that the Python of get and clear runs at
capture only, while the payload is set outside of it.  A replay repeats the recorded operations on
the storage that they were captured with (vllm/compilation/cuda_graph.py; torch's graphs do not copy
inputs).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor

from deepstack_harness.contract.protocols import Buffer, BufferFactory
from deepstack_harness.torch_compat.recording import OpRecorder

T = TypeVar("T")


@runtime_checkable
class OwnGraphs(Protocol):
    """A class of an engine that captures and replays steps by its own code, or by what emulates it."""

    def under_graphs(self) -> BufferFactory:
        """Return what makes the same buffers, with steps that are replayed."""
        ...


class ReplayedBuffer:
    """A buffer whose get and clear run once for each token count, and are replayed from then on."""

    def __init__(self, buffer: Buffer) -> None:
        """Start with nothing captured."""
        self._buffer = buffer
        self._graphs: dict[tuple[str, int], tuple[OpRecorder, object]] = {}

    @property
    def capacity(self) -> int:
        """The capacity of the buffer."""
        return self._buffer.capacity

    def get(self, tokens: int, /) -> tuple[Tensor, ...] | None:
        """Replay get; return the tensors that it answered at capture, one (P, hidden) per level or None."""
        return self._run("get", tokens, self._buffer.get)

    def set(self, payload: Tensor, /) -> None:
        """Set a payload (levels, N, hidden) outside of the graph: its Python runs every time."""
        self._buffer.set(payload)

    def clear(self, tokens: int, /) -> None:
        """Replay the operations of the clear at capture, which may have been none."""
        self._run("clear", tokens, self._buffer.clear)

    def resize(self, tokens: int, /) -> None:
        """Resize outside of the graph."""
        self._buffer.resize(tokens)

    def _run(self, call: str, tokens: int, work: Callable[[int], T]) -> T:
        if (call, tokens) not in self._graphs:
            recorder = OpRecorder()
            with recorder:
                answer = work(tokens)
            self._graphs[call, tokens] = (recorder, answer)
            return answer
        recorder, captured = self._graphs[call, tokens]
        recorder.replay()
        return captured  # type: ignore[return-value]  # it is what `work` gave for this key


@dataclass(frozen=True)
class ReplayedClass:
    """A `BufferFactory` whose buffers are captured and replayed."""

    of: BufferFactory

    def __call__(
        self, capacity: int, hidden: int, levels: int, *, dtype: torch.dtype, device: torch.device
    ) -> ReplayedBuffer:
        """Make a buffer of the class, with no graph captured."""
        return ReplayedBuffer(self.of(capacity, hidden, levels, dtype=dtype, device=device))
