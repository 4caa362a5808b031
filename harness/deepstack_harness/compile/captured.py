"""Open the session of an arm, and capture graphs as an engine does: sizes fixed, inputs in static slots.

`open_arm` starts any session. One that captures wraps the eager or compiled session: FULL and BREAKABLE
capture the outer forward, get and clear with it, so that their Python runs at capture only; PIECEWISE
captures only the decoder. A graph reads the payload tensors that it was captured with, for graphs do not copy
their inputs (vllm/compilation/cuda_graph.py).

`compile.graphs` records and replays. PIECEWISE and BREAKABLE graphs break at opaque attention on CUDA.
REDUCE_OVERHEAD leaves capturing to torch (`mode="reduce-overhead"`), which copies inputs that may move into
slots of its own.
"""

from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from deepstack_harness.compile.captured_inputs import CapturedCode
from deepstack_harness.compile.eager import EagerSession
from deepstack_harness.compile.graphs import Graph, Graphs, graphs_on
from deepstack_harness.compile.watch_captured import calling
from deepstack_harness.contract.arm import ArmSpec, Capture
from deepstack_harness.contract.protocols import Decoder, Inputs, Lane, Profile, Session
from deepstack_harness.errors import MachineError, StepUnavailable


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
    broken = spec.capture not in {Capture.FULL, Capture.FULL_DECODE_ONLY}
    return CapturedSession(spec, inner, graphs_on(profile.device, broken_at_attention=broken))


@dataclass(frozen=True)
class Captured:
    """Capture of one size: the graph, the slots of its inputs (no payload), and of its output (P, h)."""

    graph: Graph
    slots: Inputs
    out: Tensor

    def decode(self, lane: Lane, payload: tuple[Tensor, ...] | None) -> None:
        """Decode from slot to slot with a payload, one (P, h) per level or None -> (P, h)."""
        self.graph.call(lambda: self.out.copy_(lane.run(replace(self.slots, payload=payload))))


class CapturedSession:
    """Session that captures and replays graphs; without a graph it runs as `inner` does."""

    def __init__(self, spec: ArmSpec, inner: EagerSession, graphs: Graphs) -> None:
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
        tokens = _tokens(inputs)
        with self._graphs.warming_up():
            out = lane.run(replace(slots, payload=lane.get(tokens)))
            lane.clear(tokens)
        both = self._spec.capture is Capture.FULL_AND_PIECEWISE
        captured = Captured(self._graphs.graph(whole=both), slots, torch.empty_like(out))
        if self._spec.capture is Capture.PIECEWISE:
            _record_decoder(captured, lane)
        else:
            graph = captured.graph
            with graph.recording():
                payload = graph.record(lambda: lane.call_get(tokens))
                # A replay notes what get returned once it has run get.
                graph.at_replay(lambda: lane.record_graph_input(payload))
                captured.decode(lane, payload)
                graph.record(lambda: lane.clear(tokens))
        lane.allocated += captured.graph.allocated
        self._captured[tokens] = captured
        if both:
            mixed = Captured(self._graphs.graph(), slots, torch.empty_like(out))
            _record_decoder(mixed, lane)
            lane.allocated += mixed.graph.allocated
            self._of_mixed[tokens] = mixed

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
        captured.slots.hidden.copy_(inputs.hidden)
        captured.slots.positions.copy_(inputs.positions)
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


def _record_decoder(captured: Captured, lane: Lane) -> None:
    """Record the decoder in the graph, with get and clear around it."""
    tokens, graph = _tokens(captured.slots), captured.graph
    payload = lane.call_get(tokens)
    with _decoding(graph, payload), graph.recording():
        graph.at_replay(lambda: lane.record_graph_input(payload))
        captured.decode(lane, payload)
    lane.clear(tokens)


def _decoding(graph: Graph, payload: tuple[Tensor, ...] | None) -> AbstractContextManager[None]:
    """Mark a call of the decoder for a watch: the payload is its one input that is not copied into a slot."""
    return calling(CapturedCode("decoder", id(graph)), (), {"payload": payload})


def _tokens(inputs: Inputs) -> int:
    return inputs.positions.size(-1)
