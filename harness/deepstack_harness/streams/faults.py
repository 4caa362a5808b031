"""`dual` with one fault each, for two weights and one stream beside the current one."""

import functools

from torch import Tensor
from torch.nn.functional import linear

from deepstack_harness.streams.projection import sequential
from deepstack_harness.streams.stream_api import Lanes, Project

Weights = tuple[Tensor, ...]


def _beside(faulty: Project) -> Project:
    """Wrap a faulty way of projecting: without a second stream nothing can be out of order."""

    @functools.wraps(faulty)
    def project(x: Tensor, weights: Weights, lanes: Lanes) -> Weights:
        return (faulty if lanes.aux else sequential)(x, weights, lanes)

    return project


@_beside
def start_forgotten(x: Tensor, weights: Weights, lanes: Lanes) -> tuple[Tensor, ...]:
    """Project without letting the other stream wait for x (n, hidden)."""
    first = linear(x, weights[0])
    with lanes.on(lanes.aux[0]):
        second = linear(x, weights[1])
        lanes.done[0].record()
    lanes.done[0].wait()
    return first, second


@_beside
def done_forgotten(x: Tensor, weights: Weights, lanes: Lanes) -> tuple[Tensor, ...]:
    """Project x (n, hidden) without waiting for the other stream's result."""
    lanes.start.record()
    first = linear(x, weights[0])
    with lanes.on(lanes.aux[0]):
        lanes.start.wait()
        second = linear(x, weights[1])
        lanes.done[0].record()
    return first, second


@_beside
def done_recorded_outside(x: Tensor, weights: Weights, lanes: Lanes) -> tuple[Tensor, ...]:
    """Project x (n, hidden), but record the second event on the current stream.

    A published listing of vLLM 36795 does so.
    """
    lanes.start.record()
    first = linear(x, weights[0])
    with lanes.on(lanes.aux[0]):
        lanes.start.wait()
        second = linear(x, weights[1])
    lanes.done[0].record()
    lanes.done[0].wait()
    return first, second


@_beside
def start_waited_too_early(x: Tensor, weights: Weights, lanes: Lanes) -> tuple[Tensor, ...]:
    """Project x (n, hidden), but wait before the event is recorded: for nothing, or for the layer before."""
    with lanes.on(lanes.aux[0]):
        lanes.start.wait()
        second = linear(x, weights[1])
        lanes.done[0].record()
    lanes.start.record()
    first = linear(x, weights[0])
    lanes.done[0].wait()
    return first, second


@_beside
def done_waited_too_early(x: Tensor, weights: Weights, lanes: Lanes) -> tuple[Tensor, ...]:
    """Project x (n, hidden), but wait on the current stream before the other one recorded that it is done."""
    lanes.start.record()
    first = linear(x, weights[0])
    lanes.done[0].wait()
    with lanes.on(lanes.aux[0]):
        lanes.start.wait()
        second = linear(x, weights[1])
        lanes.done[0].record()
    return first, second


@_beside
def memory_reused_too_early(x: Tensor, weights: Weights, lanes: Lanes) -> tuple[Tensor, ...]:
    """Project a copy of x (n, hidden) on the other stream, and free it on the host while it is still read.

    The allocator gives memory back to the stream it came from: the current one, whose
    next result overwrites it.  (`Tensor.record_stream` is what says that another stream uses it.)
    """
    copy = x.clone()
    lanes.start.record()
    with lanes.on(lanes.aux[0]):
        lanes.start.wait()
        second = linear(copy, weights[1])
        lanes.done[0].record()
    del copy
    first = linear(x, weights[0])
    lanes.done[0].wait()
    return first, second
