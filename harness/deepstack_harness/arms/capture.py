"""Graphs captured and replayed as an engine does: sizes fixed, inputs in static slots, Python not run again.

FULL and BREAKABLE capture the outer forward, get and clear with it, so their Python
runs at capture only; PIECEWISE captures the decoder alone.  A graph reads the
payload tensors that it was captured with: graphs do not copy their inputs
(vllm/compilation/cuda_graph.py).  On CUDA these are CUDA graphs, and PIECEWISE and
BREAKABLE ones break at opaque attention; on a CPU see `deepstack_harness.arms.graph_cpu`.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from deepstack_harness.arms.compile import CompiledSession
from deepstack_harness.arms.eager import EagerSession
from deepstack_harness.arms.graph import Graph, Graphs
from deepstack_harness.arms.graph_cpu import CpuGraphs
from deepstack_harness.arms.graph_cuda import CudaGraphs
from deepstack_harness.arms.reduce_overhead import open_session as open_reduce_overhead
from deepstack_harness.contract.arm_spec import ArmSpec, Capture
from deepstack_harness.contract.protocols import Decoder, Inputs, Lane, Profile
from deepstack_harness.errors import StepUnavailable


@dataclass(frozen=True)
class Captured:
    """One size: the graph, the slots of its inputs (which have no payload), and that of its output (P, h)."""

    graph: Graph
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
    """A session whose forward is that of `inner`, and graphs of it."""

    def __init__(self, spec: ArmSpec, inner: EagerSession, graphs: Graphs) -> None:
        """Take over `inner`; no graph is captured yet."""
        self.inner = inner
        self._spec = spec
        self._graphs = graphs
        self._captured: dict[int, Captured] = {}

    def forward(self, inputs: Inputs) -> Tensor:
        """Run without a graph; return (n, hidden)."""
        return self.inner.forward(inputs)

    def capture(self, inputs: Inputs, lane: Lane) -> None:
        """Do a step once without a graph, so that compiling and growing are over, and then record it.

        An earlier graph for as many tokens is dropped.  Adds to `lane.allocated`.
        """
        slots = Inputs(inputs.hidden.clone(), inputs.positions.clone(), None)
        with self._graphs.warming_up():
            out = _outer(slots, lane)
        one = Captured(self._graphs.graph(), slots, torch.empty_like(out))
        if self._spec.capture is Capture.PIECEWISE:
            _record_decoder(one, lane)
        else:
            _record_all(one, lane)
        lane.allocated += one.graph.allocated
        self._captured[_tokens(inputs)] = one

    def replay(self, inputs: Inputs, lane: Lane) -> Tensor:
        """Replay the graph; answers (P, h).  Raises `StepUnavailable` for a size that was not captured."""
        tokens = _tokens(inputs)
        one = self._graph_for(tokens)
        one.fill(inputs)
        if self._spec.capture is Capture.PIECEWISE:
            lane.get(tokens)
            one.graph.replay()
            lane.clear(tokens)
        else:
            one.graph.replay()
        return one.out.clone()

    def reload(self) -> None:
        """Reload `inner`; graphs do not outlive their process."""
        self.inner.reload()
        self._captured.clear()

    def close(self) -> None:
        """Drop the graphs and what was compiled."""
        self._captured.clear()
        self.inner.close()

    def _graph_for(self, tokens: int) -> Captured:
        if tokens not in self._captured:
            known = ", ".join(map(str, self._captured)) or "none"
            raise StepUnavailable(
                f"arm {self._spec.name} has no graph for {tokens} tokens; captured are {known}"
            )
        return self._captured[tokens]


def _outer(inputs: Inputs, lane: Lane) -> Tensor:
    """Run the outer forward without a graph; return (P, hidden)."""
    out = lane.run(replace(inputs, payload=lane.get(_tokens(inputs))))
    lane.clear(_tokens(inputs))
    return out


def _record_all(one: Captured, lane: Lane) -> None:
    """Get, decode and clear in the graph; what get answered is noted when the graph has come to it."""
    tokens = _tokens(one.slots)
    with one.graph.recording():
        payload = one.graph.record(lambda: lane.ask(tokens))
        one.graph.at_replay(lambda: lane.reads(payload))
        one.decode(lane, payload)
        one.graph.record(lambda: lane.clear(tokens))


def _record_decoder(one: Captured, lane: Lane) -> None:
    """Record the decoder in the graph, with get and clear around it."""
    tokens = _tokens(one.slots)
    payload = lane.ask(tokens)
    with one.graph.recording():
        one.graph.at_replay(lambda: lane.reads(payload))
        one.decode(lane, payload)
    lane.clear(tokens)


def _tokens(inputs: Inputs) -> int:
    return inputs.positions.size(-1)


def open_session(spec: ArmSpec, decoder: Decoder, profile: Profile) -> CapturedSession | CompiledSession:
    """Start a session that captures; raises `MachineError` for reduce_overhead without CUDA."""
    if spec.capture is Capture.REDUCE_OVERHEAD:
        return open_reduce_overhead(spec, decoder, profile)
    inner = (CompiledSession if spec.compiled else EagerSession)(spec, decoder, profile)
    return capturing(spec, inner, profile)


def capturing(spec: ArmSpec, inner: EagerSession, profile: Profile) -> CapturedSession:
    """Return a session without graphs over `inner`, which it closes with itself."""
    if profile.device.type != "cuda":
        return CapturedSession(spec, inner, CpuGraphs())
    broken = spec.capture is not Capture.FULL
    return CapturedSession(spec, inner, CudaGraphs(profile.device, broken_at_attention=broken))
