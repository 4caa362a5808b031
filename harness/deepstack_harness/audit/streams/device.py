"""A device that records instead of running: streams, events and memory as CUDA has them.

What CUDA promises, and nothing else: operations of one stream run in their order; a wait holds its
stream until the place that the event marked *when the host called wait*; waiting for an event that
was never recorded does nothing.  A vector clock of each operation has what is certainly done before it.

Memory is that of a caching allocator: it comes from the current stream's own pool, goes back there as
soon as the host lets the last tensor on it go, and is then given out again to that stream, whatever
other streams still do with it. `Tensor.record_stream` prevents that.

`Lanes` is the interface that a projection is given, recording or real.  `sequential` and `dual` are
independent projections of one input: in turn, and on streams ordered by events (vLLM #36795).
"""

import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from torch import Tensor
from torch.nn.functional import linear

from deepstack_harness.errors import NotMeasured

Clock = tuple[int, ...]


@dataclass
class Stream:
    """One stream; `clock` counts, by stream, operations that are certainly done before what comes next."""

    name: str
    index: int
    device: "Device"
    clock: list[int]

    def wait_event(self, event: "Event") -> None:
        """Do as `torch.cuda.Stream.wait_event`."""
        event.wait(self)

    def wait_stream(self, other: "Stream") -> None:
        """Do as `torch.cuda.Stream.wait_stream`."""
        other.record_event().wait(self)

    def record_event(self, event: "Event | None" = None) -> "Event":
        """Do as `torch.cuda.Stream.record_event`."""
        event = event or Event(self.device)
        event.record(self)
        return event


@dataclass
class Event:
    """An event; `clock` is that of the stream at its last recording, None before the first."""

    device: "Device"
    clock: Clock | None = None

    def record(self, stream: Stream | None = None) -> None:
        """Do as `torch.cuda.Event.record`."""
        self.clock = tuple((stream or self.device.current).clock)

    def wait(self, stream: Stream | None = None) -> None:
        """Do as `torch.cuda.Event.wait`."""
        if self.clock is None:
            self.device.early_waits += 1
            return
        held = stream or self.device.current
        held.clock[:] = map(max, held.clock, self.clock)


class Device:
    """A main stream, and others next to it; `current` is the one that operations go to."""

    def __init__(self, others: int) -> None:
        names = ["main", *(f"aux{number or ''}" for number in range(others))]
        self.streams = [Stream(name, index, self, [0] * len(names)) for index, name in enumerate(names)]
        self.current = self.streams[0]
        self.early_waits = 0
        """Waits for events that nobody had recorded."""

    @property
    def aux(self) -> tuple[Stream, ...]:
        """The streams next to the main one."""
        return tuple(self.streams[1:])

    @contextmanager
    def use_stream(self, stream: Stream | None) -> Iterator[None]:
        """Make `stream` the current one, as `torch.cuda.stream`; None changes nothing."""
        before = self.current
        self.current = stream or before
        try:
            yield
        finally:
            self.current = before

    def launch(self) -> tuple[Stream, Clock]:
        """Put the next operation into the current stream; return that stream and the operation's clock."""
        stream = self.current
        stream.clock[stream.index] += 1
        return stream, tuple(stream.clock)


_ALIGNED = 512  # bytes: what CUDA's allocator rounds up to


@dataclass(frozen=True, eq=False)
class Block:
    """Some memory of a stream's pool; `stream` is -1 for memory that was there before."""

    name: str
    bytes: int
    stream: int


class Memory:
    """Map of storages to blocks of memory.

    Storage is known by its address, which is its own as long as it lives.
    """

    def __init__(self) -> None:
        self.live: dict[int, Block] = {}
        """Blocks that are given out now, by the address of their storage."""
        self._tensors: dict[int, dict[int, weakref.ref[Tensor]]] = defaultdict(dict)
        self._free: dict[tuple[int, int], list[Block]] = defaultdict(list)
        self._retained: set[Block] = set()
        self._blocks = 0

    def block_of(self, tensor: Tensor, stream: int = -1) -> Block:
        """Return the memory of a tensor of any shape; a new one takes it from the pool of `stream`.

        Raises `NotMeasured` for an empty tensor.
        """
        storage = tensor.untyped_storage()
        address = storage.data_ptr()
        if address not in self.live:
            size = -(-storage.nbytes() // _ALIGNED) * _ALIGNED
            if not size:
                raise NotMeasured("an empty tensor has no memory that could be followed")
            free = self._free[stream, size]
            if not free:
                self._blocks += 1
                free.append(Block(f"memory {self._blocks}", size, stream))
            self.live[address] = free.pop()
        known = self._tensors[address]
        if id(tensor) not in known:
            known[id(tensor)] = weakref.ref(tensor, partial(self._drop, address, id(tensor)))
        return self.live[address]

    def keep(self, tensor: Tensor, stream: object) -> None:
        """Do as `tensor.record_stream(stream)`: memory of a tensor of any shape is not given out again."""
        self._retained.add(self.block_of(tensor))

    def _drop(self, address: int, own: int, _: object) -> None:
        known = self._tensors[address]
        del known[own]
        if not known:
            del self._tensors[address]
            block = self.live.pop(address)
            # What was there before has no pool to go back to.
            if block not in self._retained and block.stream >= 0:
                self._free[block.stream, block.bytes].append(block)


class StreamEvent(Protocol):
    """Interface of `torch.cuda.Event`, on the current stream."""

    def record(self) -> None:
        """Mark this place in the current stream."""
        ...

    def wait(self) -> None:
        """Hold the current stream until the place marked last; nothing where none is."""
        ...


@dataclass(frozen=True)
class Lanes:
    """The streams next to the current one, each with an event that marks its end; `start` lets them begin.

    `aux` is empty where there is only one stream. `stream` makes one of them current, as `torch.cuda.stream`
    does, and `keep` marks a tensor as used by one, as `Tensor.record_stream` does (which only takes a real
    stream).
    """

    start: StreamEvent
    done: tuple[StreamEvent, ...]
    aux: tuple[Any, ...]
    stream: Callable[[Any], AbstractContextManager[object]]
    keep: Callable[[Tensor, Any], None]


Project = Callable[[Tensor, tuple[Tensor, ...], Lanes], tuple[Tensor, ...]]
"""Projections of one input (n, h), a result (n, out) for each weight (out, h), in their order."""


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
        with lanes.stream(stream):
            lanes.start.wait()
            results.append(linear(x, weight))
            done.record()
    for done in lanes.done:
        done.wait()
    return tuple(results)


def dual_of_copy(x: Tensor, weights: tuple[Tensor, ...], lanes: Lanes) -> tuple[Tensor, ...]:
    """Project a copy of x (n, hidden) as `dual` does; the host frees the copy at once.

    `Lanes.keep` first marks the copy as used by another stream.
    """
    if not lanes.aux:
        return sequential(x, weights, lanes)
    copy = x.clone()
    lanes.keep(copy, lanes.aux[0])
    lanes.start.record()
    with lanes.stream(lanes.aux[0]):
        lanes.start.wait()
        second = linear(copy, weights[1])
        lanes.done[0].record()
    del copy
    first = linear(x, weights[0])
    lanes.done[0].wait()
    return first, second
