"""A worker returns a result, or its end is named with phase, facts and output; it never ends its caller."""

import logging
import math
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cases.by_day import by_day
from cases.selftest.workers.processes import has_ended, interrupt_after, open_streams
from deepstack_harness.errors import ExitCode, HarnessError, MachineError, UsageError
from deepstack_harness.workers import forked, supervised, worker
from deepstack_harness.workers.limits import Limits
from deepstack_harness.workers.outcomes import (
    Answered,
    CallResult,
    EndKind,
    RaisedInWorker,
    end_of,
    is_end,
)
from deepstack_harness.workers.supervised import TAIL
from deepstack_harness.workers.worker import Worker

MODULE = "cases.selftest.workers.misbehaving"
SHORT_S = 1.5
"""Seconds for calls that hang: long enough to report before, also on a busy machine."""


def once(name: str, limits: Limits | None = None, **arguments: object) -> CallResult:
    with Worker(limits) as worker:
        return worker.call(f"{MODULE}:{name}", arguments)


def answer(worker: Worker, name: str, **arguments: object) -> Any:  # noqa: ANN401  # JSON
    result = worker.call(f"{MODULE}:{name}", arguments)
    assert isinstance(result, Answered), result
    return result.value


@pytest.fixture(scope="module")
def warm() -> Iterator[Worker]:
    """One worker for all calls that leave it as it is."""
    with Worker(preload=MODULE) as actual:
        yield actual
        assert actual.ended is None


# Results


@pytest.mark.parametrize(
    "value",
    [None, -0.0, math.inf, math.nan, 1e-320, 0.1, 2**70, "\udc80 \n é", [1, [2.5, {"a": None}]], "x" * 10**6],
    ids=lambda value: repr(value)[:12],
)
def test_a_value_comes_back_as_it_was(warm: Worker, value: object) -> None:
    assert repr(answer(warm, "echo", value=value)) == repr(value)


def test_modules_stay_loaded_between_calls(warm: Worker) -> None:
    assert [answer(warm, "count") for _ in range(3)] == [1, 2, 3]


def test_nothing_of_the_parent_is_inherited(monkeypatch: pytest.MonkeyPatch, warm: Worker) -> None:
    monkeypatch.setattr(f"{MODULE}.COUNT", 70)
    assert answer(warm, "count") < 70


def test_facts_come_in_order_while_the_call_runs() -> None:
    seen: list[object] = []
    with Worker() as child:
        arguments = {"then": "crash"}
        end = child.call(f"{MODULE}:report_and", arguments, on_fact=seen.append)
    assert seen == list(end.facts) == [{"step": 1}, {"step": 2}]


def test_a_child_loads_no_package_before_a_request_names_it(tmp_path: Path) -> None:
    target = tmp_path / "lists_modules.py"
    target.write_text("import sys\n\n\ndef modules():\n    return sorted(sys.modules)\n")
    with Worker() as worker:
        result = worker.call(f"{target}:modules")
    assert isinstance(result, Answered)
    assert not {name.partition(".")[0] for name in result.value} & {
        "deepstack_harness",
        "torch",
        "numpy",
        "msgspec",
    }


def interpreters() -> list[str]:
    """Other interpreters of this machine; of this one the base, which does not have our packages."""
    base = str(Path(sys.base_prefix) / "bin" / "python3")
    actual = [shutil.which(f"python3.{minor}") for minor in (11, 12, 13, 14)]
    return [base, *(path for path in actual if path and not path.startswith(sys.prefix))]


@pytest.mark.parametrize("interpreter", interpreters())
def test_it_runs_in_an_environment_without_the_harness(tmp_path: Path, interpreter: str) -> None:
    probe = [interpreter, "-c", "import sys; sys.exit(sys.version_info < (3, 11))"]
    if subprocess.run(probe, capture_output=True, check=False).returncode:
        pytest.skip("does not start, or is older than Python 3.11")
    target = tmp_path / "target.py"
    target.write_text(
        "import importlib.util, sys\n\n\n"
        "def describe(number, channel):\n"
        "    channel.fact(number + 1)\n"
        "    ours = importlib.util.find_spec('deepstack_harness')\n"
        "    return [sys.version_info[:2] >= (3, 11), ours is None, sys.path[0].endswith('workers')]\n"
    )
    with Worker(interpreter=interpreter, environment={"PYTHONPATH": None}) as child:
        result = child.call(f"{target}:describe", {"number": 1})
    assert result == Answered(value=[True, True, False], facts=(2,))


def test_what_surrounds_a_worker_is_its_own(tmp_path: Path) -> None:
    environment = {"GIVEN": "here", "HOME": None}
    with Worker(folder=tmp_path, environment=environment) as child:
        answer_of_child = answer(child, "surroundings", names=["GIVEN", "HOME", "OMP_NUM_THREADS", "PATH"])
        assert child.pid == answer_of_child["pid"] == answer_of_child["group"] != os.getpgid(0)
    assert answer_of_child["folder"] == str(tmp_path)
    assert answer_of_child["environment"] == {
        "GIVEN": "here", "HOME": None, "OMP_NUM_THREADS": "1", "PATH": os.environ["PATH"],
    }  # fmt: skip
    assert answer_of_child["stdin"] == ""
    assert answer_of_child["arguments"] == []
    assert answer_of_child["inherited by programs"] == [0, 1, 2]
    assert len(answer_of_child["open"]) <= 6  # 0, 1, 2, two pipes, and the listing itself


def test_our_path_is_searched_and_its_empty_entry_is_our_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "only_here.py").write_text("def found():\n    return True\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    with Worker(folder=Path("/")) as child:
        assert child.call("only_here:found") == Answered(value=True)


# Exceptions: the worker can be called again


def raised(worker: Worker, name: str, **arguments: object) -> RaisedInWorker:
    result = worker.call(f"{MODULE}:{name}", arguments)
    assert isinstance(result, RaisedInWorker), result
    assert answer(worker, "double", number=21) == 42
    return result


def test_an_exception_is_a_result(warm: Worker) -> None:
    error = raised(warm, "refuse", why="because")
    assert (error.type, error.module, error.message) == ("ValueError", "builtins", "because")
    assert error.sentence == "ValueError: because"
    assert error.exit_code is None
    (place,) = error.where
    path, _, line = place.rpartition(":")
    assert Path(path).read_text().splitlines()[int(line) - 1].strip() == "raise ValueError(why)"
    assert str(error.as_error) == f"ValueError: because ({place})"
    assert type(error.as_error) is HarnessError


def test_an_error_of_ours_is_raised_again_as_itself(warm: Worker) -> None:
    error = raised(warm, "refuse_as_we_do", known=True)
    assert (error.exit_code, error.sentence) == (ExitCode.USAGE, "unknown name 'x'")
    assert (type(error.as_error), str(error.as_error)) == (UsageError, "unknown name 'x'")
    other = raised(warm, "refuse_as_we_do", known=False)
    assert (other.type, type(other.as_error), str(other.as_error)) == (
        "NotFetched",
        MachineError,
        "no network",
    )


@pytest.mark.parametrize(
    ("name", "arguments", "sentence"),
    [
        ("raise_unspeakable", {}, "Unspeakable: (its text cannot be had: RuntimeError)"),
        ("return_a_lock", {}, "TypeError: Object of type lock is not JSON serializable"),
        ("not_there", {}, "has no attribute 'not_there'"),
        ("double", {"nombre": 1}, "TypeError: double() got an unexpected keyword argument 'nombre'"),
        ("echo", {"value": {"kind": "fact"}}, ""),
    ],
)
def test_what_cannot_be_called_or_returned_is_reported(
    warm: Worker, name: str, arguments: dict[str, object], sentence: str
) -> None:
    if sentence:
        assert sentence in raised(warm, name, **arguments).sentence
    else:
        assert answer(warm, name, **arguments) == arguments["value"]


def test_a_file_that_cannot_be_imported_is_imported_again_by_the_next_call(
    warm: Worker, tmp_path: Path
) -> None:
    (tmp_path / "target.py").write_text("raise ValueError('not yet')\n")
    for _ in range(2):
        result = warm.call(f"{tmp_path / 'target.py'}:run")
        assert isinstance(result, RaisedInWorker)
        assert result.sentence == "ValueError: not yet"
    (tmp_path / "target.py").write_text("def run():\n    return 'now, and longer'\n")
    assert warm.call(f"{tmp_path / 'target.py'}:run").value == "now, and longer"  # type: ignore[union-attr]


def test_a_missing_module_is_reported(warm: Worker) -> None:
    result = warm.call("nowhere.at_all:function")
    assert isinstance(result, RaisedInWorker)
    assert result.sentence == "ModuleNotFoundError: No module named 'nowhere'"


# Ends: each with the phase, the facts and the output until then


@pytest.mark.parametrize(
    ("then", "expected", "reason"),
    [
        ("hang", EndKind.TIMED_OUT, f"no answer within {SHORT_S:g} s"),
        ("stop", EndKind.TIMED_OUT, f"no answer within {SHORT_S:g} s"),
        ("crash", EndKind.SIGNALLED, "ended by SIGSEGV"),
        ("really crash", EndKind.SIGNALLED, "ended by SIGSEGV"),
        ("kill own group", EndKind.SIGNALLED, "ended by SIGKILL"),
        ("kill supervisor", EndKind.SIGNALLED, "ended by SIGKILL"),
        ("terminate supervisor", EndKind.SIGNALLED, "ended by SIGKILL"),
        ("interrupt", EndKind.SIGNALLED, "ended by SIGINT"),
        ("real-time signal", EndKind.SIGNALLED, "ended by signal 40"),
        ("exit 0", EndKind.EXITED, "exited with 0"),
        ("exit 7", EndKind.EXITED, "exited with 7"),
        ("os._exit 0", EndKind.EXITED, "exited with 0"),
        ("os._exit 3", EndKind.EXITED, "exited with 3"),
        ("exit with a thread", EndKind.TIMED_OUT, f"no answer within {SHORT_S:g} s"),
    ],
)
def test_every_end_is_named_with_all_that_is_known(then: str, expected: EndKind, reason: str) -> None:
    seconds = SHORT_S if expected is EndKind.TIMED_OUT else 60
    with Worker(Limits(call_s=seconds), preload=MODULE) as child:
        end = child.call(f"{MODULE}:report_and", {"then": then})
        assert is_end(end, expected)
        assert end.sentence == f"{reason} in method get, step 3"
        assert end.facts == ({"step": 1}, {"step": 2})
        assert end.output.startswith("last words, and an error")
        assert child.ended is end
        assert child.pid is not None
        assert has_ended(child.pid)


@pytest.mark.parametrize(
    ("then", "seconds", "expected"),
    [
        ("stop supervisor", SHORT_S, EndKind.TIMED_OUT),
        ("stop supervisor and print", 300.0, EndKind.FLOODED),
    ],
)
def test_a_supervisor_that_the_worker_stopped_is_killed(
    monkeypatch: pytest.MonkeyPatch, then: str, seconds: float, expected: EndKind
) -> None:
    monkeypatch.setattr(supervised, "GRACE_S", 0.2)
    with Worker(Limits(call_s=seconds), preload=MODULE) as child:
        assert is_end(child.call(f"{MODULE}:report_and", {"then": then}), expected)
        assert child.pid is not None
        assert has_ended(child.pid)


def test_every_fact_of_a_worker_that_died_is_reported() -> None:
    with Worker() as child:
        end = child.call(f"{MODULE}:send_facts_and_crash", {"count": 3000})
        assert is_end(end, EndKind.SIGNALLED)
        assert end.facts == tuple([number, "x" * 1000] for number in range(3000))
        assert end.output == "y" * TAIL


def test_what_is_not_printed_out_yet_belongs_to_the_call_that_prints_it(warm: Worker) -> None:
    first = warm.call(f"{MODULE}:print_bytes", {"size": 3, "word": "a"})
    second = warm.call(f"{MODULE}:print_bytes", {"size": 2, "word": "b"})
    assert (first.output, second.output) == ("aaa", "bb")


def test_the_end_of_a_long_output_is_retained(warm: Worker) -> None:
    result = warm.call(f"{MODULE}:print_bytes", {"size": 3 * 2**20})
    assert isinstance(result, Answered)
    assert result.output == "x" * TAIL


@pytest.mark.parametrize("name", by_day(["eat", "eat_in_crumbs"]))
def test_memory_that_runs_out_ends_the_worker(name: str) -> None:
    arguments = {"megabytes": 2000} if name == "eat" else {}
    with Worker(Limits(memory=200 * 2**20)) as child:
        assert answer(child, "eat", megabytes=50) == 50
        end = child.call(f"{MODULE}:{name}", arguments)
        assert is_end(end, EndKind.OUT_OF_MEMORY)
        assert end.sentence == "MemoryError"
        assert child.ended is end


def test_the_same_memory_is_granted_without_a_limit(warm: Worker) -> None:
    assert answer(warm, "eat", megabytes=400) == 400


def test_a_worker_of_a_worker_has_the_lower_limits() -> None:
    with Worker(Limits(open_files=60)) as child:
        assert answer(child, "open_files_of_a_worker", limit=50) == [50, 50]
        assert answer(child, "open_files_of_a_worker", limit=5000) == [60, 60]
    with Worker() as child:
        assert answer(child, "core_limit") == [0, 0]


def test_open_files_and_file_sizes_are_limited(tmp_path: Path) -> None:
    with Worker(Limits(open_files=40, file_size=2**20)) as child:
        assert answer(child, "open_files", count=10) == 10
        assert "Too many open files" in raised(child, "open_files", count=40).message
        answer(child, "write_file", path=str(tmp_path / "short"), size=2**19)
        assert (
            "File too large" in raised(child, "write_file", path=str(tmp_path / "long"), size=2**21).message
        )


def test_a_flood_of_output_ends_the_worker() -> None:
    with Worker(Limits(output=2**20)) as child:
        assert answer(child, "print_bytes", size=2**20) == 2**20
        end = child.call(f"{MODULE}:print_bytes", {"size": 2**27})
    assert is_end(end, EndKind.FLOODED)
    (size,) = end.details
    assert 2**20 < size < 2**22
    assert end.sentence == f"printed {size} bytes or more"


def test_a_little_more_than_the_limit_is_a_flood_however_fast() -> None:
    assert is_end(once("print_bytes", Limits(output=2**15), size=2**15 + 1), EndKind.FLOODED)
    assert isinstance(once("print_bytes", Limits(output=2**15), size=2**15), Answered)


def test_a_flood_of_facts_ends_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "_MOST_RECEIVED", 2**20)
    assert is_end(once("send_facts_until_ended"), EndKind.FLOODED)


def take_a_while(fact: object) -> None:
    list(map(str, range(10_000)))


def test_facts_without_end_are_ended_by_the_time() -> None:
    with Worker(Limits(call_s=SHORT_S), preload=MODULE) as child:
        # Listened to so slowly that the pipe is always full.
        end = child.call(f"{MODULE}:send_facts_until_ended", on_fact=take_a_while)
        assert is_end(end, EndKind.TIMED_OUT)
        assert end.facts


@pytest.mark.parametrize(
    ("text", "actual"),
    [
        ("nonsense\n", "nonsense"),
        ("[1]\n", "[1]"),
        ('{"call": 1, "kind": "verdict", "value": 0}\n', "verdict"),
        ('{"call": 7, "kind": "answered", "value": 0}\n', "a message 'answered' of call 7"),
        ('{"call": 1, "kind": "ready", "value": 0}\n', "a message 'ready' of call 1"),
        ('{"call": 1, "kind": "raised", "value": {}}\n', "an exception without its fields"),
        ('{"call": 1, "kind": "raised", "value": 3}\n', "an exception without its fields"),
        ('{"call": 1, "kind": "raised", "value": {"type": 3}}\n', "an exception without its fields"),
        ("[" * 100_000 + "\n", "[[["),
    ],
)
def test_what_is_no_message_ends_the_worker(text: str, actual: str) -> None:
    end = once("write_to_every_stream", text=text)
    assert is_end(end, EndKind.SENT_GARBAGE)
    assert actual in end.sentence


def test_a_closed_result_pipe_is_no_endless_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "GRACE_S", 0.1)
    end = once("close_every_stream", then="hang")
    assert is_end(end, EndKind.SENT_GARBAGE)
    assert end.sentence == "sent no message, but closed its answer pipe"


def test_an_exit_after_closing_the_result_pipe_is_still_an_exit() -> None:
    assert once("close_every_stream", then="exit 7") == end_of(7)


@pytest.mark.parametrize("name", ["fork_and_answer", "fork_and_raise"])
def test_a_fork_of_the_worker_returns_no_result(name: str) -> None:
    with Worker() as child:
        assert answer(child, name) == "the worker"
        assert [answer(child, "double", number=number) for number in range(20)] == [*range(0, 40, 2)]


def test_facts_of_an_earlier_call_are_not_those_of_the_next() -> None:
    with Worker() as child:
        answer(child, "leave_a_thread_that_reports")
        assert child.call(f"{MODULE}:let_the_thread_report") == Answered(value="answer")


def test_output_is_limited_for_each_step() -> None:
    limits = Limits(step_s=60, output=2**18)
    assert isinstance(once("print_in_steps", limits, steps=40, size=2**16), Answered)
    assert is_end(once("print_in_steps", limits, steps=2, size=2**19), EndKind.FLOODED)


def test_time_is_limited_for_each_step_or_for_the_call() -> None:
    limits = Limits(step_s=SHORT_S)
    for seconds, limit_s in ((None, SHORT_S), (2 * SHORT_S, 2 * SHORT_S)):
        with Worker(limits, preload=MODULE) as child:
            end = child.call(f"{MODULE}:announce", {"phases": 3}, timeout_s=seconds)
            assert is_end(end, EndKind.TIMED_OUT)
            assert end.sentence == f"no answer within {limit_s:g} s in phase 2"


# Start


def test_a_start_that_takes_too_long_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker.MessagePipes, "receive", lambda _: None)  # however fast it is
    with Worker(Limits(start_s=0.0), preload=MODULE) as child:
        end = child.call(f"{MODULE}:double", {"number": 1})
        assert is_end(end, EndKind.TIMED_OUT)
        assert end.sentence == "no answer within 0 s in the start"


def test_a_supervisor_that_never_sends_the_process_id_is_no_endless_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(supervised.Supervised, "_take_report", lambda *_: None)
    with Worker(Limits(start_s=SHORT_S), preload=MODULE) as child:
        assert child.start() is None
        assert child.pid is None


@pytest.mark.parametrize("served", ["", "nothing"])
@pytest.mark.parametrize(
    ("source", "reason", "printed"),
    [
        ("raise RuntimeError('not today')", "exited with 1", "RuntimeError: not today"),
        ("raise SystemExit(4)", "exited with 4", ""),
        ("print('going', flush=True); import os; os.abort()", "ended by SIGABRT", "going"),
    ],
)
def test_a_module_that_cannot_be_imported_is_named_and_the_next_worker_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, reason: str, printed: str, served: str
) -> None:
    monkeypatch.setattr(forked, "SERVED", served)
    (tmp_path / "unimportable.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    with Worker(preload="unimportable") as child:
        end = child.start()
    assert end is not None
    assert end.sentence == f"{reason} in the import of unimportable"
    assert printed in end.output
    with Worker(preload=MODULE) as child:
        assert answer(child, "double", number=1) == 2


@pytest.mark.parametrize(
    ("options", "quoted"),
    [
        ({"interpreter": "/no/such/python"}, "/no/such/python"),
        ({"folder": Path("/no/such/folder")}, "/no/such/folder"),
    ],
)
def test_what_cannot_be_started_is_one_sentence(options: dict[str, Any], quoted: str) -> None:
    with pytest.raises(
        MachineError, match=f"cannot start a process with '{quoted}': No such file or directory"
    ):
        Worker(**options).launch()


# The caller


@pytest.mark.usefixtures("reset_signals")
def test_an_interrupt_ends_the_worker_and_goes_on() -> None:
    with Worker() as child:
        hangs = threading.Event()
        interrupter = threading.Thread(target=interrupt_after, args=(hangs.wait,))
        interrupter.start()
        with pytest.raises(KeyboardInterrupt):
            child.call(f"{MODULE}:report_and", {"then": "hang"}, on_fact=lambda _: hangs.set())
        interrupter.join()
        assert is_end(child.ended, EndKind.STOPPED)
        assert child.pid is not None
        assert has_ended(child.pid)


def divide_by_zero(fact: object) -> None:
    raise ZeroDivisionError


def test_an_error_in_what_takes_the_facts_ends_the_worker_and_goes_on() -> None:
    with Worker() as child:
        with pytest.raises(ZeroDivisionError):
            child.call(f"{MODULE}:report_and", {"then": "hang"}, on_fact=divide_by_zero)
        assert is_end(child.ended, EndKind.STOPPED)


def stop_after(worker: Worker, event: threading.Event) -> None:
    event.wait()
    worker.stop()


def test_another_thread_may_stop_it() -> None:
    with Worker() as child:
        started = threading.Event()
        stopper = threading.Thread(target=stop_after, args=(child, started))
        stopper.start()
        end = child.call(f"{MODULE}:report_and", {"then": "hang"}, on_fact=lambda _: started.set())
        stopper.join()
    assert is_end(end, EndKind.STOPPED)
    child.stop()


def test_a_request_that_is_never_read_is_no_endless_wait() -> None:
    with Worker(Limits(call_s=SHORT_S)) as child:
        assert child.start() is None
        assert child.pid is not None
        os.kill(child.pid, signal.SIGSTOP)
        assert is_end(child.call(f"{MODULE}:echo", {"value": "x" * 2**22}), EndKind.TIMED_OUT)


def test_half_a_result_is_no_endless_wait() -> None:
    half = '{"call": 1, "kind": "answered", "value": '
    end = once("write_to_every_stream", Limits(call_s=SHORT_S), text=half)
    assert is_end(end, EndKind.TIMED_OUT)


def test_workers_of_several_threads_do_not_mix() -> None:
    found: dict[int, list[object]] = {}

    def use(number: int) -> None:
        with Worker(preload=MODULE) as child:
            found[number] = [answer(child, "double", number=number + step) for step in range(50)]

    threads = [threading.Thread(target=use, args=(number,)) for number in (0, 1000, 2000)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {start: [2 * (start + step) for step in range(50)] for start in (0, 1000, 2000)}


def test_no_stream_is_left_open() -> None:
    before = open_streams()
    for _ in range(3):
        once("double", number=1)
        once("report_and", then="crash")
    with pytest.raises(MachineError):
        Worker(interpreter="/no/such/python").launch()
    assert open_streams() == before


def test_a_fork_of_its_owner_abandons_nothing() -> None:
    link, theirs = socket.socketpair()
    with link, theirs, subprocess.Popen(["sleep", "600"]) as process:
        supervised._abandon(os.getpid() + 1, link, process)
        assert process.poll() is None
        process.kill()


def test_a_link_that_is_reset_has_ended() -> None:
    link, theirs = socket.socketpair()
    with link:
        link.send(b"never read")
        theirs.close()
        assert supervised.read_now(link.fileno()) == b""


@pytest.mark.parametrize(("out", "notices"), [(None, 1), ("/nowhere/log", 0)])
def test_logs_of_torch_that_nobody_would_see_are_noticed_once(
    out: str | None, notices: int, monkeypatch: pytest.MonkeyPatch, logged: list[logging.LogRecord]
) -> None:
    monkeypatch.setattr(worker, "_NOTICED", [])
    monkeypatch.setenv("TORCH_LOGS", "output_code")
    monkeypatch.delenv("TORCH_LOGS_OUT", raising=False)
    if out:
        monkeypatch.setenv("TORCH_LOGS_OUT", out)
    for _ in range(2):
        with Worker() as child:
            child.launch()
    assert [record.getMessage().partition(":")[0] for record in logged] == [
        "TORCH_LOGS is set, and a worker's output is not shown"
    ] * notices
