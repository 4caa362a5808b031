"""Recording streams: what CUDA promises of order, and nothing else."""

from collections.abc import Callable
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepstack_harness.audit.streams.device import Clock, Device, Event, orders


def every_order(device: Device) -> set[tuple[int, ...]]:
    found = list(orders([stream.queue for stream in device.streams]))
    assert len(found) == len(set(found))
    return set(found)


def before(one: tuple[int, Clock], other: tuple[int, Clock]) -> bool:
    """By the clocks: whether `one`, (stream, clock), is certainly done before `other` begins."""
    stream, clock = one
    return other[1][stream] >= clock[stream]


# A program: (stream, 'launch'), or (stream, 'record' or 'wait', event).
STEPS = st.tuples(st.integers(0, 1), st.sampled_from(["launch", "record", "wait"]), st.integers(0, 1))


@given(st.lists(STEPS, max_size=11))
def test_clocks_order_exactly_what_no_order_of_the_streams_turns_round(
    program: list[tuple[int, str, int]],
) -> None:
    device = Device(1)
    events = [Event(device), Event(device)]
    launched: list[tuple[int, Clock]] = []
    for stream, what, event in program:
        with device.on(device.streams[stream]):
            if what == "launch":
                launched.append((stream, device.launch()[1]))
            else:
                getattr(events[event], what)()
    every = every_order(device)
    assert all(sorted(order) == list(range(len(launched))) for order in every)
    for first, second in combinations(range(len(launched)), 2):
        seen = {order.index(first) < order.index(second) for order in every}
        assert seen == ({True} if before(launched[first], launched[second]) else {True, False})


def test_two_streams_without_events_may_run_in_any_order() -> None:
    device = Device(1)
    device.launch()
    with device.on(device.aux[0]):
        device.launch()
        device.launch()
    assert every_order(device) == {(0, 1, 2), (1, 0, 2), (1, 2, 0)}


def after(prepare: Callable[[Device, Event], None]) -> set[tuple[int, ...]]:
    """Operation 0 on main, then `prepare`, then operation 1 beside it."""
    device = Device(1)
    event = Event(device)
    device.launch()
    prepare(device, event)
    with device.on(device.aux[0]):
        device.launch()
    return every_order(device)


def record_and_wait(device: Device, event: Event) -> None:
    event.record()
    event.wait(device.aux[0])


def wait_only(device: Device, event: Event) -> None:
    event.wait(device.aux[0])
    event.record()


def wait_event(device: Device, event: Event) -> None:
    event.record()
    device.aux[0].wait_event(event)


def record_event(device: Device, event: Event) -> None:
    device.aux[0].wait_event(device.current.record_event())


def wait_stream(device: Device, event: Event) -> None:
    device.aux[0].wait_stream(device.streams[0])


def record_elsewhere(device: Device, event: Event) -> None:
    event.record(device.aux[0])
    event.wait(device.aux[0])


@pytest.mark.parametrize("orders_it", [record_and_wait, wait_event, record_event, wait_stream])
def test_what_orders(orders_it: Callable[[Device, Event], None]) -> None:
    assert after(orders_it) == {(0, 1)}


@pytest.mark.parametrize("does_not", [wait_only, record_elsewhere])
def test_what_does_not(does_not: Callable[[Device, Event], None]) -> None:
    assert after(does_not) == {(0, 1), (1, 0)}


def test_a_wait_is_for_what_was_recorded_when_it_was_called() -> None:
    device = Device(1)
    event = Event(device)
    event.record()
    with device.on(device.aux[0]):
        event.wait()
        device.launch()
    device.launch()
    event.record()
    assert every_order(device) == {(0, 1), (1, 0)}
    assert device.early_waits == 0


def test_a_wait_for_what_nobody_recorded_is_counted() -> None:
    device = Device(1)
    Event(device).wait()
    assert device.early_waits == 1


def test_streams_have_names_and_none_leaves_the_current_one() -> None:
    device = Device(2)
    assert [stream.name for stream in device.streams] == ["main", "aux", "aux1"]
    with device.on(device.aux[1]), device.on(None):
        assert device.current.name == "aux1"
    assert device.current.name == "main"
