"""Items that several workers share: order, errors, and that nothing goes on when the caller does not."""

import sys
import threading
from collections.abc import Generator, Iterator
from contextlib import ExitStack

import pytest

from cases.selftest.workers.processes import Witness, has_ended, interrupt_after
from deepstack_harness.workers.outcomes import Answered, CallResult, EndKind, is_end
from deepstack_harness.workers.pool import map_items
from deepstack_harness.workers.worker import Worker

MODULE = "cases.selftest.workers.misbehaving"


class Slot:
    """A worker without a process: `stop` ends what waits for it."""

    def __init__(self) -> None:
        self.stopped = threading.Event()

    def stop(self) -> None:
        self.stopped.set()


@pytest.mark.parametrize(
    ("in_order", "expected"), [(False, ["1a", "1b", "0a", "0b"]), (True, ["0a", "0b", "1a", "1b"])]
)
def test_results_come_at_once_or_in_the_order_of_the_items(*, in_order: bool, expected: list[str]) -> None:
    second_ended = threading.Event()

    def work(_: Slot, number: int) -> Iterator[str]:
        if number == 0:  # the second item overtakes it
            assert second_ended.wait(60)
        yield f"{number}a"
        yield f"{number}b"
        if number == 1:
            second_ended.set()

    slots = [Slot(), Slot()]
    assert list(map_items(work, range(2), slots, in_order=in_order)) == expected
    assert not any(slot.stopped.is_set() for slot in slots)  # they can be used again


@pytest.mark.parametrize("in_order", [False, True])
@pytest.mark.parametrize("count", [0, 1, 7])
def test_every_item_is_worked_on_once(count: int, *, in_order: bool) -> None:
    done = list(map_items(lambda _, item: [item], iter(range(count)), [Slot()] * 3, in_order=in_order))
    assert (done if in_order else sorted(done)) == list(range(count))


def test_one_thread_at_a_time_reads_the_items() -> None:
    """A generator that two threads enter raises `ValueError`."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        items = (sum(range(number % 99)) * 0 + number for number in range(20000))
        done = map_items(lambda _, item: [item], items, [Slot()] * 4)
        assert sorted(done) == list(range(20000))
    finally:
        sys.setswitchinterval(before)


@pytest.mark.parametrize("fails", ["work", "items"])
def test_an_error_ends_the_others_and_is_raised(fails: str) -> None:
    taken: list[int] = []

    def items() -> Iterator[int]:
        yield 0
        if fails == "items":
            raise ZeroDivisionError
        yield from range(1, 9)

    def work(slot: Slot, number: int) -> Iterator[int]:
        taken.append(number)
        if number == 1:
            raise ZeroDivisionError
        assert slot.stopped.wait(60)
        yield number

    slots = [Slot(), Slot()]
    with pytest.raises(ZeroDivisionError):
        list(map_items(work, items(), slots))
    assert all(slot.stopped.is_set() for slot in slots)
    assert taken == ([0, 1] if fails == "work" else [0])


def call(worker: Worker, target: str) -> Iterator[CallResult]:
    yield worker.call(f"{MODULE}:{target}")


def test_a_worker_that_dies_is_replaced_for_the_items_that_follow() -> None:
    with Worker(preload=MODULE) as worker:
        first, killed, last = map_items(call, ["count", "crash", "count"], [worker], in_order=True)
        assert is_end(killed, EndKind.SIGNALLED)
        assert (first, last) == (Answered(1), Answered(1))


def hanging(witness: Witness, workers: list[Worker]) -> Generator[CallResult]:
    """The first item ends; the others join the witness and hang, in both workers."""

    def work(worker: Worker, item: int) -> Iterator[CallResult]:
        if item == 0:
            yield worker.call(f"{MODULE}:count")
        else:
            yield worker.call(f"{MODULE}:tell_and_hang", {"witness": witness.path})

    return map_items(work, range(9), workers)


@pytest.fixture
def workers() -> Iterator[list[Worker]]:
    with ExitStack() as opened:
        yield [opened.enter_context(Worker(preload=MODULE)) for _ in range(2)]


def assert_ended(workers: list[Worker], witness: Witness) -> None:
    assert witness.is_closed()
    assert all(is_end(worker.call(f"{MODULE}:count"), EndKind.STOPPED) for worker in workers)
    pids = [worker.pid for worker in workers if worker.pid]
    assert pids
    assert all(map(has_ended, pids))
    assert max(worker.starts for worker in workers) == 1


def test_closing_it_ends_the_processes_that_hang(witness: Witness, workers: list[Worker]) -> None:
    results = hanging(witness, workers)
    assert next(results) == Answered(1)
    assert len({witness.line(), witness.line()}) == 2
    results.close()
    assert_ended(workers, witness)


@pytest.mark.usefixtures("reset_signals")
def test_ctrl_c_ends_the_processes_that_hang(witness: Witness, workers: list[Worker]) -> None:
    interrupter = threading.Thread(target=interrupt_after, args=(witness.line,))
    interrupter.start()
    with pytest.raises(KeyboardInterrupt):
        list(hanging(witness, workers))  # its processes write the line
    interrupter.join()
    assert_ended(workers, witness)
