"""Independent projections of one input: in turn, and on streams ordered by events (vLLM #36795)."""

from torch import Tensor
from torch.nn.functional import linear

from deepstack_harness.streams.stream_api import Lanes


def sequential(x: Tensor, weights: tuple[Tensor, ...], lanes: Lanes) -> tuple[Tensor, ...]:  # noqa: ARG001  # a `Project`
    """Project x (n, hidden) by each weight (out, hidden) in turn on the current stream -> (n, out) each.

    Every other order must give these results bit for bit.
    """
    return tuple(linear(x, weight) for weight in weights)


def dual(x: Tensor, weights: tuple[Tensor, ...], lanes: Lanes) -> tuple[Tensor, ...]:
    """Project x (n, hidden) by the first weight (out, hidden) here, by the others on streams of their own.

    The other streams wait for `start`, so that x is there, and the current stream waits for each `done`, so
    that the results (n, out) are.
    """
    if not lanes.aux:
        return sequential(x, weights, lanes)
    lanes.start.record()
    results = [linear(x, weights[0])]
    for weight, done, stream in zip(weights[1:], lanes.done, lanes.aux, strict=True):
        with lanes.on(stream):
            lanes.start.wait()
            results.append(linear(x, weight))
            done.record()
    for done in lanes.done:
        done.wait()
    return tuple(results)


def dual_of_copy(x: Tensor, weights: tuple[Tensor, ...], lanes: Lanes) -> tuple[Tensor, ...]:
    """Project a copy of x (n, hidden) as `dual` does; the host frees the copy at once.

    `Lanes.keep` says first that another stream uses the copy.
    """
    if not lanes.aux:
        return sequential(x, weights, lanes)
    copy = x.clone()
    lanes.keep(copy, lanes.aux[0])
    lanes.start.record()
    with lanes.on(lanes.aux[0]):
        lanes.start.wait()
        second = linear(copy, weights[1])
        lanes.done[0].record()
    del copy
    first = linear(x, weights[0])
    lanes.done[0].wait()
    return first, second
