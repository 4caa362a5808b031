"""Every order in which streams may run what the host put into them; no torch."""

from collections.abc import Iterator, Sequence

from deepstack_harness.streams.recorded_device import Await, Entry, Launch, Mark

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
