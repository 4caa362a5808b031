"""Recording streams and memory: the order that CUDA promises, and who gets memory again."""

from collections.abc import Callable
from itertools import combinations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from deepstack_harness.audit.streams.device import Clock, Device, Event, Memory
from deepstack_harness.audit.streams.recording import Recorder, different_bits
from deepstack_harness.errors import NotMeasured


def before(one: tuple[int, Clock], other: tuple[int, Clock]) -> bool:
    """By the clocks: whether `one`, (stream, clock), is certainly done before `other` begins."""
    stream, clock = one
    return other[1][stream] >= clock[stream]


def reachable(program: list[tuple[int, str, int]]) -> list[set[int]]:
    """For each launch those that CUDA orders before it, by following streams and events backwards."""
    done: dict[int, set[int]] = {0: set(), 1: set()}
    marked: dict[int, set[int]] = {}
    launches: list[set[int]] = []
    for stream, what, event in program:
        if what == "launch":
            launches.append(set(done[stream]))
            done[stream].add(len(launches) - 1)
        elif what == "record":
            marked[event] = set(done[stream])
        else:
            done[stream] |= marked.get(event, set())
    return launches


# A program: (stream, 'launch'), or (stream, 'record' or 'wait', event).
STEPS = st.tuples(st.integers(0, 1), st.sampled_from(["launch", "record", "wait"]), st.integers(0, 1))


@given(st.lists(STEPS, max_size=24))
def test_clocks_order_exactly_what_streams_and_events_order(program: list[tuple[int, str, int]]) -> None:
    device = Device(1)
    events = [Event(device), Event(device)]
    launched: list[tuple[int, Clock]] = []
    for stream, what, event in program:
        with device.use_stream(device.streams[stream]):
            if what == "launch":
                launched.append((stream, device.launch()[1]))
            else:
                getattr(events[event], what)()
    ordered = reachable(program)
    for first, second in combinations(range(len(launched)), 2):
        assert before(launched[first], launched[second]) == (first in ordered[second])


def after(prepare: Callable[[Device, Event], None]) -> bool:
    """Whether an operation on main is certainly done before one on the other stream, after `prepare`."""
    device = Device(1)
    event = Event(device)
    first = device.launch()
    prepare(device, event)
    with device.use_stream(device.aux[0]):
        second = device.launch()
    return before((first[0].index, first[1]), (second[0].index, second[1]))


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
    assert after(orders_it)


@pytest.mark.parametrize("does_not", [wait_only, record_elsewhere])
def test_what_does_not(does_not: Callable[[Device, Event], None]) -> None:
    assert not after(does_not)


def test_a_wait_is_for_what_was_recorded_when_it_was_called() -> None:
    device = Device(1)
    event = Event(device)
    event.record()
    with device.use_stream(device.aux[0]):
        event.wait()
        _, clock = device.launch()
    device.launch()
    event.record()
    assert clock == (0, 1)
    assert device.early_waits == 0


def test_a_wait_for_what_nobody_recorded_is_counted() -> None:
    device = Device(1)
    Event(device).wait()
    assert device.early_waits == 1


def test_streams_have_names_and_none_leaves_the_current_one() -> None:
    device = Device(2)
    assert [stream.name for stream in device.streams] == ["main", "aux", "aux1"]
    with device.use_stream(device.aux[1]), device.use_stream(None):
        assert device.current.name == "aux1"
    assert device.current.name == "main"


def tensor(floats: int = 4) -> Tensor:
    return torch.zeros(floats)


def test_memory_goes_back_to_its_stream_and_is_given_out_again() -> None:
    memory = Memory()
    one = tensor()
    first = memory.block_of(one, stream=0)
    del one
    other, own = tensor(), tensor()
    assert memory.block_of(other, stream=1) is not first
    assert memory.block_of(own, stream=0) is first


def test_memory_of_another_size_is_other_memory() -> None:
    memory = Memory()
    one = tensor(129)  # 516 bytes: two units of the allocator
    first = memory.block_of(one, 0)
    assert first.bytes == 1024
    del one
    small, large = tensor(4), tensor(200)
    assert memory.block_of(small, 0) is not first
    assert memory.block_of(large, 0) is first


def test_memory_is_held_while_a_view_lives() -> None:
    memory = Memory()
    one = tensor()
    view = one.detach()  # which, unlike a slice, does not hold on to `one` itself
    first = memory.block_of(one, 0)
    assert memory.block_of(view, 0) is first
    del one
    other = tensor()
    assert memory.block_of(other, 0) is not first
    del view
    last = tensor()
    assert memory.block_of(last, 0) is first


def test_memory_that_another_stream_uses_does_not_come_back() -> None:
    memory = Memory()
    one = tensor()
    first = memory.block_of(one, 0)
    memory.keep(one, None)
    del one
    other = tensor()
    assert memory.block_of(other, 0) is not first


def test_what_was_there_before_is_never_given_out() -> None:
    memory = Memory()
    one = torch.arange(128.0)  # 512 bytes, of which nothing is rounded up
    block = memory.block_of(one)
    del one
    other = tensor(128)
    assert memory.block_of(other, 0) is not block


def test_an_empty_tensor_cannot_be_followed() -> None:
    with pytest.raises(NotMeasured, match="an empty tensor has no memory"):
        Memory().block_of(torch.zeros(0), 0)


def recorded(work: Callable[[Tensor], object]) -> Recorder:
    """What is seen of `work` on x, whose role is 'weight'."""
    x = torch.arange(1.0, 5.0)
    recorder = Recorder(Device(0), {"weight": x})
    with recorder:
        work(x)
    return recorder


def accesses(work: Callable[[Tensor], object]) -> list[tuple[int, int]]:
    """(how many blocks are read, how many written) of each operation."""
    return [(len(call.reads), len(call.writes)) for call in recorded(work).operations]


def add_in_place(x: Tensor) -> None:
    x += 1


def store(x: Tensor) -> None:
    x[1:] = 0


OPERATIONS: dict[str, tuple[Callable[[Tensor], object], list[tuple[int, int]]]] = {
    "makes a result": (lambda x: x + 1, [(1, 1)]),
    "of two tensors": (lambda x: torch.add(x, torch.ones(4)), [(0, 1), (2, 1)]),
    "in place": (lambda x: x.add_(1), [(1, 1)]),
    "an operator in place": (add_in_place, [(1, 1)]),
    "an assignment": (store, [(1, 1)]),
    "into out": (lambda x: torch.add(x, 1, out=x), [(1, 1)]),
    "a list of tensors": (lambda x: torch.cat([x, x[:2]]), [(1, 1)]),
    "several results": (torch.sort, [(1, 2)]),
    "a view": (lambda x: x.view(2, 2).t(), []),
    "a question": (lambda x: (x.shape, x.dim(), len(x), x.is_cuda), []),
}


@pytest.mark.parametrize("what", OPERATIONS)
def test_what_an_operation_reads_and_writes(what: str) -> None:
    work, seen = OPERATIONS[what]
    assert accesses(work) == seen


def test_results_in_reused_memory_are_results() -> None:
    def work(x: Tensor) -> None:
        one = x + 1
        del one
        other = x + 2
        del other

    first, second = recorded(work).operations
    assert first.writes == second.writes
    assert first.reads == second.reads != first.writes


def test_operations_are_named_by_role_and_by_what_is_done_around_them() -> None:
    x = torch.ones(4)
    recorder = Recorder(Device(0), {"projection A": x})
    with recorder, recorder.naming("layer 1"):
        y = torch.ones(4)
        with recorder.naming("input"):
            y = y * 2
        torch.add(x, y)
    assert [call.name for call in recorder.operations] == [
        "layer 1: ones", "layer 1: input: mul", "layer 1: projection A",
    ]  # fmt: skip


def test_bits_are_compared_and_not_values() -> None:
    nan = torch.tensor([float("nan"), 0.0])
    assert different_bits(nan, nan.clone()) == 0
    assert different_bits(nan, torch.tensor([float("nan"), -0.0])) == 1
    assert different_bits(nan, nan[:1]) == 2
    assert different_bits(nan, nan.double()) == 2
    assert different_bits(torch.ones(2, 3).t(), torch.ones(3, 2, dtype=torch.float32)) == 0
