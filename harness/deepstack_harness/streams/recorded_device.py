"""A device that only takes notes: streams and events as CUDA's, a vector clock for each stream; no torch.

What CUDA promises, and nothing else: operations of one stream run in their order; a
wait holds its stream until the place that the event marked *when the host called
wait*; waiting for an event that was never recorded does nothing.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

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
