"""Workers over several processes: started when needed, replaced after a death, called with typed values."""

import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec
import pytest

from deepstack_harness.workers.limits import Limits
from deepstack_harness.workers.outcomes import Answered, EndKind, RaisedInWorker, is_end
from deepstack_harness.workers.remote import Remote, converted
from deepstack_harness.workers.worker import MessagePipes, Worker

MODULE = "cases.selftest.workers.misbehaving"
COUNT = Remote(f"{MODULE}:count", int)
KILLED = f"{MODULE}:crash"


@dataclass(frozen=True)
class Rows:
    """Rows that are sent to a worker and come back."""

    name: str
    spans: tuple[tuple[int, int], ...]
    content: bytes


def doubled(rows: Rows, times: int) -> list[Rows]:
    """Work of a worker: arguments that are records already."""
    assert isinstance(rows, Rows)
    return [rows] * times


DOUBLED = Remote(f"{__name__}:doubled", list[Rows])
ROWS = Rows("level 0", ((0, 3), (5, 9)), b"\x00\xff")


@pytest.fixture
def worker() -> Iterator[Worker]:
    with Worker(preload=MODULE) as warm:
        yield warm


def test_no_process_is_started_before_it_is_needed(worker: Worker) -> None:
    assert (worker.starts, worker.alive, worker.pid) == (0, False, None)
    worker.launch()
    assert (worker.starts, worker.alive) == (1, True)
    assert worker.start() is None
    assert worker.pid is not None


def test_a_process_stays_warm_until_it_dies(worker: Worker) -> None:
    assert [worker.call(COUNT), worker.call(COUNT)] == [Answered(1), Answered(2)]
    assert is_end(worker.call(KILLED), EndKind.SIGNALLED)
    assert not worker.alive
    assert (worker.call(COUNT), worker.starts, worker.ends) == (Answered(1), 2, 1)


def test_a_closed_one_starts_again_and_counts_no_end(worker: Worker) -> None:
    worker.call(COUNT)
    worker.close()
    assert (worker.call(COUNT), worker.starts, worker.ends) == (Answered(1), 2, 0)


def test_a_stopped_one_starts_no_other_process(worker: Worker) -> None:
    worker.call(COUNT)
    thread = threading.Thread(target=worker.stop)
    thread.start()
    thread.join()
    assert all(is_end(worker.call(COUNT), EndKind.STOPPED) for _ in range(2))
    assert is_end(worker.start(), EndKind.STOPPED)
    assert worker.starts == 1


def test_the_limits_hold_for_each_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MessagePipes, "receive", lambda _: None)  # however fast it is
    with Worker(Limits(start_s=0.0), preload=MODULE) as late:
        assert [late.start() is None, late.start() is None] == [False, False]
        assert late.starts == 2


def test_arguments_and_the_result_are_records(worker: Worker) -> None:
    answer = worker.call(DOUBLED, {"rows": ROWS, "times": 2})
    assert answer == Answered([ROWS, ROWS])


def test_an_argument_of_another_type_is_refused_in_the_worker(worker: Worker) -> None:
    refused = worker.call(DOUBLED, {"rows": ROWS, "times": "two"})
    assert isinstance(refused, RaisedInWorker)
    assert (refused.type, refused.message) == (msgspec.ValidationError.__name__, "Expected `int`, got `str`")


def test_a_result_of_another_type_ends_the_process(worker: Worker) -> None:
    wrong: Sequence[Remote[object]] = (Remote(COUNT.target, str), Remote(DOUBLED.target, list[int]))
    for remote in wrong:
        arguments = {"rows": ROWS, "times": 1} if remote.target == DOUBLED.target else {}
        end = worker.call(remote, arguments)
        assert is_end(end, EndKind.SENT_GARBAGE)
        assert end.reason.startswith("sent no message, but another value: Expected")
    assert worker.ends == 2


@pytest.mark.slow  # costs time where it fails, and no more
def test_torch_has_one_thread_in_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.setenv(variable, "4")
    for preload in ("deepstack_harness.play.work", None):
        with Worker(preload=preload) as warm:
            assert warm.call(Remote("torch:get_num_threads", int)) == Answered(1)


# Sixty record types that no thread has seen, each met by four threads at once.
AT_ONCE = """
import gc, sys, threading
from dataclasses import make_dataclass
from deepstack_harness.workers.remote import converted

sys.setswitchinterval(1e-6)
value = {f"x{i}": {f"a{j}": 1 for j in range(10)} for i in range(10)}
results = []
for _ in range(60):
    parts = [make_dataclass(f"Part{i}", [(f"a{j}", int) for j in range(10)]) for i in range(10)]
    kind = make_dataclass("Whole", [(f"x{i}", part) for i, part in enumerate(parts)])
    together = threading.Barrier(4)

    def convert():
        together.wait()
        results.append(converted(value, kind).x9.a9)
        gc.collect()

    threads = [threading.Thread(target=convert) for _ in range(4)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
print(sum(results))
"""


def test_threads_that_meet_a_record_type_at_once_convert_it() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", AT_ONCE], capture_output=True, text=True, timeout=120, check=False
    )
    assert (ran.returncode, ran.stdout) == (0, "240\n"), ran.stderr


def test_a_value_of_another_type_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match="Expected `int`, got `str`"):
        converted("eleven", int)
