"""Open the session of an arm, and capture graphs as an engine does: sizes fixed, inputs in static slots.

`open_arm` starts any session. One that captures wraps the eager or compiled session: FULL and BREAKABLE
capture the outer forward, get and clear with it, so that their Python runs at capture only; PIECEWISE
captures only the decoder. A graph reads the payload tensors that it was captured with, for graphs do not copy
their inputs (vllm/compilation/cuda_graph.py).

On CUDA these are CUDA graphs (public API `torch.cuda.graph`), and PIECEWISE and BREAKABLE ones break at
opaque attention. On a CPU operations are recorded, and replayed on the very tensors they were recorded with,
in storage that the buffer may have left long ago. REDUCE_OVERHEAD leaves capturing to torch
(`mode="reduce-overhead"`), which copies inputs that may move into slots of its own.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor
from typing_extensions import override

from deepstack_harness.compile.captured_inputs import CapturedCode
from deepstack_harness.compile.eager import EagerSession
from deepstack_harness.compile.torch_compat.modes import OpRecorder
from deepstack_harness.compile.watch_captured import calling
from deepstack_harness.compile.watch_captured import capturing as watched_capture
from deepstack_harness.compile.watch_captured import replaying as watched_replay
from deepstack_harness.contract.arm import ArmSpec, Capture
from deepstack_harness.contract.protocols import Decoder, Inputs, Lane, Profile, Session
from deepstack_harness.errors import MachineError, NotMeasured, StepUnavailable
from deepstack_harness.models.layers import around_attention

T = TypeVar("T")


def open_inner(spec: ArmSpec, decoder: Decoder, profile: Profile) -> EagerSession:
    """Start the session of an arm that runs `decoder` without graphs of ours; see `open_arm`."""
    if not spec.compiled:
        return EagerSession(spec, decoder, profile)
    # What is not compiled, as in `check` of a buffer, does without these modules.
    from deepstack_harness.compile.compiled import CompiledSession, ReduceOverheadSession

    if spec.capture is Capture.REDUCE_OVERHEAD:
        if profile.device.type != "cuda":
            raise MachineError(
                f"arm '{spec.name}' needs a CUDA device, not '{profile.device}': "
                "torch captures CUDA graphs only"
            )
        return ReduceOverheadSession(spec, decoder, profile)
    if spec.interpreted and not spec.captured:
        from deepstack_harness.compile.interpreted import InterpretedSession

        return InterpretedSession(spec, decoder, profile)
    return CompiledSession(spec, decoder, profile)


def open_arm(spec: ArmSpec, decoder: Decoder, profile: Profile) -> Session:
    """Start a session that runs `decoder` under the arm `spec`; nothing is compiled before the first forward.

    Raises `MachineError` for reduce_overhead without CUDA, and for code that is interpreted in a process that
    was not started for it.
    """
    return capturing(spec, open_inner(spec, decoder, profile), profile)


def capturing(spec: ArmSpec, inner: EagerSession, profile: Profile) -> Session:
    """Return a session over `inner` that captures, and closes it; `inner` itself where the arm does not."""
    if spec.capture in {Capture.NONE, Capture.REDUCE_OVERHEAD}:
        return inner
    if profile.device.type != "cuda":
        return CapturedSession(spec, inner, CpuGraphs())
    broken = spec.capture not in {Capture.FULL, Capture.FULL_DECODE_ONLY}
    return CapturedSession(spec, inner, CudaGraphs(profile.device, broken_at_attention=broken))


@dataclass(frozen=True)
class Captured:
    """Capture of one size: the graph, the slots of its inputs (no payload), and of its output (P, h)."""

    graph: "Graph"
    slots: Inputs
    out: Tensor

    def fill(self, inputs: Inputs) -> None:
        """Copy the inputs of a step into the slots."""
        self.slots.hidden.copy_(inputs.hidden)
        self.slots.positions.copy_(inputs.positions)

    def decode(self, lane: Lane, payload: tuple[Tensor, ...] | None) -> None:
        """Decode from slot to slot with a payload, one (P, h) per level or None -> (P, h)."""
        self.graph.call(lambda: self.out.copy_(lane.run(replace(self.slots, payload=payload))))


class CapturedSession:
    """Session that captures and replays graphs; without a graph it runs as `inner` does."""

    def __init__(self, spec: ArmSpec, inner: EagerSession, graphs: "Graphs") -> None:
        """Take over `inner`; no graph is captured yet."""
        self.inner = inner
        self._spec = spec
        self._graphs = graphs
        self._captured: dict[int, Captured] = {}
        self._of_mixed: dict[int, Captured] = {}
        """Piecewise graphs of sizes that have a full graph too."""

    def forward(self, inputs: Inputs) -> Tensor:
        """Run without a graph; return (n, hidden)."""
        return self.inner.forward(inputs)

    def capture(self, inputs: Inputs, lane: Lane) -> None:
        """Do a step once without a graph, so that compiling and growing are over, and then record it.

        An earlier graph for as many tokens is dropped. Adds to `lane.allocated`.
        """
        slots = Inputs(inputs.hidden.clone(), inputs.positions.clone(), None)
        with self._graphs.warming_up():
            out = _outer(slots, lane)
        both = self._spec.capture is Capture.FULL_AND_PIECEWISE
        captured = Captured(self._graphs.graph(whole=both), slots, torch.empty_like(out))
        if self._spec.capture is Capture.PIECEWISE:
            _record_decoder(captured, lane)
        else:
            _record_all(captured, lane)
        lane.allocated += captured.graph.allocated
        self._captured[_tokens(inputs)] = captured
        if both:
            mixed = Captured(self._graphs.graph(), slots, torch.empty_like(out))
            _record_decoder(mixed, lane)
            lane.allocated += mixed.graph.allocated
            self._of_mixed[_tokens(inputs)] = mixed

    def replay(self, inputs: Inputs, lane: Lane) -> Tensor:
        """Replay the graph; return (P, h). Raises `StepUnavailable` for a size that was not captured."""
        tokens = _tokens(inputs)
        if tokens not in self._captured:
            known = ", ".join(map(str, self._captured)) or "none"
            raise StepUnavailable(
                f"arm {self._spec.name} has no graph for {tokens} tokens; captured are {known}"
            )
        mixed = self._of_mixed.get(tokens) if lane.mixed else None
        captured = mixed or self._captured[tokens]
        captured.fill(inputs)
        if mixed is not None or self._spec.capture is Capture.PIECEWISE:
            with _decoding(captured.graph, lane.get(tokens)):
                captured.graph.replay()
            lane.clear(tokens)
        else:
            captured.graph.replay()
        return captured.out.clone()

    def reload(self) -> None:
        """Reload `inner`; graphs do not outlive their process."""
        self.inner.reload()
        self._captured.clear()
        self._of_mixed.clear()

    def close(self) -> None:
        """Drop the graphs and what was compiled."""
        self._captured.clear()
        self._of_mixed.clear()
        self.inner.close()


def _outer(inputs: Inputs, lane: Lane) -> Tensor:
    """Run the outer forward without a graph; return (P, hidden)."""
    out = lane.run(replace(inputs, payload=lane.get(_tokens(inputs))))
    lane.clear(_tokens(inputs))
    return out


def _record_all(captured: Captured, lane: Lane) -> None:
    """Record get, decode and clear in the graph; a replay notes what get returned once it has run get."""
    tokens, graph = _tokens(captured.slots), captured.graph
    with graph.recording():
        payload = graph.record(lambda: lane.call_get(tokens))
        graph.at_replay(lambda: lane.record_graph_input(payload))
        captured.decode(lane, payload)
        graph.record(lambda: lane.clear(tokens))


def _record_decoder(captured: Captured, lane: Lane) -> None:
    """Record the decoder in the graph, with get and clear around it."""
    tokens, graph = _tokens(captured.slots), captured.graph
    payload = lane.call_get(tokens)
    with _decoding(graph, payload), graph.recording():
        graph.at_replay(lambda: lane.record_graph_input(payload))
        captured.decode(lane, payload)
    lane.clear(tokens)


def _decoding(graph: "Graph", payload: tuple[Tensor, ...] | None) -> AbstractContextManager[None]:
    """Mark a call of the decoder for a watch: the payload is its one input that is not copied into a slot."""
    return calling(CapturedCode("decoder", id(graph)), (), {"payload": payload})


def _tokens(inputs: Inputs) -> int:
    return inputs.positions.size(-1)


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

    def again(self) -> None:
        """Do again what was recorded, without waiting to see that it was done: for clocks."""
        self._replay()

    @abstractmethod
    def _recording(self) -> AbstractContextManager[object]: ...

    @abstractmethod
    def _replay(self) -> None: ...


class Graphs(Protocol):
    """Source of the graphs of one session."""

    def warming_up(self) -> AbstractContextManager[object]:
        """Open while the work is done once, before it is captured."""
        ...

    def graph(self, *, whole: bool = False) -> Graph:
        """Return a new graph, in which nothing is recorded yet; a `whole` one never breaks at attention."""
        ...


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
    def _replay(self) -> None:
        watched_replay(self)
        self._tape.replay()


class CpuGraphs:
    """Graphs of one session on a CPU."""

    def warming_up(self) -> AbstractContextManager[object]:
        """Do nothing: a CPU needs no warm-up."""
        return nullcontext()

    def graph(self, *, whole: bool = False) -> CpuGraph:
        """Return a new graph."""
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
        """Return a new graph."""
        capture = {"pool": self._pool, "stream": self._stream}
        broken = self._broken_at_attention and not whole
        return CudaGraph(self._device, capture, broken_at_attention=broken)


class CudaGraph(Graph):
    """Captured kernels in pieces, with Python between them: notes, and opaque attention if requested.

    What is captured does not run until the graph is replayed, so its results are not written before.
    """

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
        """Run attention outside the graph at every replay; its output goes where the next piece reads it."""
        with self._break():
            out = run()
            self._parts.append(lambda: out.copy_(run()))
        return out

    @property
    def _allocations(self) -> int:
        return int(torch.cuda.memory_stats(self._device)["allocation.all.allocated"])
