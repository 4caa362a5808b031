"""A device that records instead of running: streams, events and memory as CUDA has them; no torch.

What CUDA promises, and nothing else: operations of one stream run in their order; a wait holds its
stream until the place that the event marked *when the host called wait*; waiting for an event that
was never recorded does nothing.  `orders` yields every order in which streams may run what the host
put into them.

Memory is that of a caching allocator: it comes from the current stream's own pool, goes back there as
soon as the host lets the last tensor on it go, and is then given out again to that stream, whatever
other streams still do with it.  `Tensor.record_stream` keeps it from that.

`Lanes` is the interface that a projection is given, recording or real.  `sequential` and `dual` are
independent projections of one input: in turn, and on streams ordered by events (vLLM #36795).
"""

import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.functional import linear

from deepstack_harness.errors import NotMeasured

Clock = tuple[int, ...]


@dataclass(frozen=True)
class Launch:
    """An operation in a stream, by its number."""

    number: int


@dataclass(frozen=True)
class Mark:
    """A recorded event's place in a stream."""

    identity: int


@dataclass(frozen=True)
class Await:
    """The stream goes on once the mark has been reached."""

    mark: Mark


Entry = Launch | Mark | Await


@dataclass
class Stream:
    """One stream: what the host put into it, in order, and what is certainly done before what comes next."""

    name: str
    index: int
    device: "Device"
    clock: list[int]
    queue: list[Entry] = field(default_factory=list)

    def wait_event(self, event: "Event") -> None:
        """Do as `torch.cuda.Stream.wait_event`."""
        self.device.wait(self, event)

    def wait_stream(self, other: "Stream") -> None:
        """Do as `torch.cuda.Stream.wait_stream`."""
        event = Event(self.device)
        event.record(other)
        event.wait(self)

    def record_event(self, event: "Event | None" = None) -> "Event":
        """Do as `torch.cuda.Stream.record_event`."""
        event = event or Event(self.device)
        event.record(self)
        return event


@dataclass
class Event:
    """An event; `mark` and `clock` are those of its last recording."""

    device: "Device"
    mark: Mark | None = None
    clock: Clock = ()

    def record(self, stream: Stream | None = None) -> None:
        """Do as `torch.cuda.Event.record`."""
        self.device.record(stream or self.device.current, self)

    def wait(self, stream: Stream | None = None) -> None:
        """Do as `torch.cuda.Event.wait`."""
        self.device.wait(stream or self.device.current, self)


class Device:
    """A main stream, and others beside it; `current` is the one that operations go to."""

    def __init__(self, others: int) -> None:
        names = ["main", *(f"aux{number or ''}" for number in range(others))]
        self.streams = [Stream(name, index, self, [0] * len(names)) for index, name in enumerate(names)]
        self.current = self.streams[0]
        self.early_waits = 0
        """Waits for events that nobody had recorded."""
        self._launched = 0
        self._marked = 0

    @property
    def aux(self) -> tuple[Stream, ...]:
        """The streams beside the main one."""
        return tuple(self.streams[1:])

    @contextmanager
    def on(self, stream: Stream | None) -> Iterator[None]:
        """Make `stream` the current one, as `torch.cuda.stream`; None changes nothing."""
        before = self.current
        self.current = stream or before
        try:
            yield
        finally:
            self.current = before

    def launch(self) -> tuple[Stream, Clock]:
        """Put the next operation into the current stream; answers that stream and the operation's clock."""
        stream = self.current
        stream.clock[stream.index] += 1
        stream.queue.append(Launch(self._launched))
        self._launched += 1
        return stream, tuple(stream.clock)

    def record(self, stream: Stream, event: Event) -> None:
        """Let `event` mark where `stream` is now."""
        event.mark = Mark(self._marked)
        event.clock = tuple(stream.clock)
        self._marked += 1
        stream.queue.append(event.mark)

    def wait(self, stream: Stream, event: Event) -> None:
        """Hold `stream` until what `event` marks now."""
        if event.mark is None:
            self.early_waits += 1
            return
        stream.clock[:] = map(max, stream.clock, event.clock)
        stream.queue.append(Await(event.mark))


Order = tuple[int, ...]
"""Numbers of operations, first to last."""


def orders(queues: Sequence[Sequence[Entry]]) -> Iterator[Order]:
    """Yield the orders of the launches in `queues`, one queue for each stream.

    Marks and waits take no time: a stream passes them as soon as it may.
    """
    yield from _continue(queues, (0,) * len(queues), frozenset(), ())


def _continue(
    queues: Sequence[Sequence[Entry]], at: tuple[int, ...], reached: frozenset[Mark], order: Order
) -> Iterator[Order]:
    at, reached = _pass(queues, at, reached)
    heads = [queue[place] if place < len(queue) else None for queue, place in zip(queues, at, strict=True)]
    if not any(heads):
        yield order
    for stream, head in enumerate(heads):
        if isinstance(head, Launch):
            after = tuple(place + (stream == index) for index, place in enumerate(at))
            yield from _continue(queues, after, reached, (*order, head.number))


def _pass(
    queues: Sequence[Sequence[Entry]], at: tuple[int, ...], reached: frozenset[Mark]
) -> tuple[tuple[int, ...], frozenset[Mark]]:
    """Move every stream up to its next launch, or to a wait for what is not reached yet."""
    places, marks = list(at), set(reached)
    moved = True
    while moved:
        moved = False
        for stream, queue in enumerate(queues):
            if places[stream] < len(queue) and _passable(queue[places[stream]], marks):
                if isinstance(mark := queue[places[stream]], Mark):
                    marks.add(mark)
                places[stream] += 1
                moved = True
    return tuple(places), frozenset(marks)


def _passable(entry: Entry, reached: set[Mark]) -> bool:
    return isinstance(entry, Mark) or (isinstance(entry, Await) and entry.mark in reached)


_ALIGNED = 512  # bytes: what CUDA's allocator rounds up to


@dataclass(frozen=True, eq=False)
class Block:
    """Some memory of a stream's pool.

    `before` has the bytes that a tensor brought along, which was there before; None for the others.
    """

    number: int
    bytes: int
    stream: int
    before: Tensor | None = None

    @property
    def name(self) -> str:
        """The word by which facts call it."""
        return f"memory {self.number}"


@dataclass(frozen=True)
class Slot:
    """A tensor as a place in memory: how to find it again."""

    block: Block
    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


class Memory:
    """Map of storages to blocks of memory.

    Storage is known by its address, which is its own as long as it lives.
    """

    def __init__(self) -> None:
        self._live: dict[int, Block] = {}
        self._tensors: dict[int, dict[int, weakref.ref[Tensor]]] = defaultdict(dict)
        self._free: dict[tuple[int, int], list[Block]] = defaultdict(list)
        self._kept: set[Block] = set()
        self._blocks = 0

    @property
    def live(self) -> frozenset[Block]:
        """Storages that are given out now."""
        return frozenset(self._live.values())

    def slot_of(self, tensor: Tensor) -> Slot:
        """Return the place of a tensor of any shape; an unknown one was there before, in no stream's pool."""
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self._live:
            content = torch.empty(0, dtype=torch.uint8).set_(storage).clone()
            self._live[storage.data_ptr()] = self._new(storage.nbytes(), stream=-1, before=content)
        return self._slot(tensor)

    def made(self, tensor: Tensor, stream: int) -> Slot:
        """Return the place of a result of any shape; new memory is taken from the pool of `stream`."""
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self._live:
            self._live[storage.data_ptr()] = self._take(storage.nbytes(), stream)
        return self._slot(tensor)

    def keep(self, tensor: Tensor) -> None:
        """Keep the memory of a tensor of any shape out of its pool for good: another stream uses it too."""
        self._kept.add(self.slot_of(tensor).block)

    def _take(self, size: int, stream: int) -> Block:
        size = -(-size // _ALIGNED) * _ALIGNED
        free = self._free[stream, size]
        return free.pop() if free else self._new(size, stream)

    def _new(self, size: int, stream: int, before: Tensor | None = None) -> Block:
        if not size:
            raise NotMeasured("an empty tensor has no memory that could be followed")
        self._blocks += 1
        return Block(self._blocks, size, stream, before)

    def _slot(self, tensor: Tensor) -> Slot:
        address = tensor.untyped_storage().data_ptr()
        known = self._tensors[address]
        if id(tensor) not in known:
            known[id(tensor)] = weakref.ref(tensor, partial(self._drop, address, id(tensor)))
        block = self._live[address]
        return Slot(block, tensor.dtype, tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset()))

    def _drop(self, address: int, own: int, _: object) -> None:
        known = self._tensors[address]
        del known[own]
        if not known:
            del self._tensors[address]
            block = self._live.pop(address)
            if block not in self._kept:
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
    """The streams beside the current one, each with the event that says it is done; `start` lets them begin.

    `aux` is empty where there is one stream only.  `on` makes one of them current, as
    `torch.cuda.stream` does, and `keep` says that one uses a tensor, as `Tensor.record_stream` does
    (which takes no stream but a real one).
    """

    start: StreamEvent
    done: tuple[StreamEvent, ...]
    aux: tuple[Any, ...]
    on: Callable[[Any], AbstractContextManager[object]]
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
