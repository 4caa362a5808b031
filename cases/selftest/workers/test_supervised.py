"""No process is left of a worker or of a command line, however it, its supervisor or its parent ends."""

import ctypes
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cases.selftest.workers.processes import Witness, has_ended, interrupt_after, open_streams, parent_of
from deepstack_harness.errors import HarnessError
from deepstack_harness.workers import child
from deepstack_harness.workers.limits import Limits
from deepstack_harness.workers.outcomes import Answered, EndKind, WorkerEnd, end_of, is_end
from deepstack_harness.workers.supervised import Command, Supervised, run_command
from deepstack_harness.workers.worker import MessagePipes, Worker

MODULE = "cases.selftest.workers.misbehaving"
LIMITS = Limits(call_s=60)

# Workers


def test_a_daemon_lives_as_long_as_its_worker(witness: Witness) -> None:
    with Worker() as warm:
        assert isinstance(warm.call(f"{MODULE}:start_daemon", {"witness": witness.path}), Answered)
        daemon = int(witness.line())
        os.kill(daemon, 0)  # it is there
        assert isinstance(warm.call(f"{MODULE}:double", {"number": 1}), Answered)
        os.kill(daemon, 0)
    assert witness.is_closed()


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("start_daemon", {"then": "hang"}, EndKind.TIMED_OUT),
        ("start_daemon", {"then": "stop"}, EndKind.TIMED_OUT),
        ("start_daemon", {"then": "crash"}, EndKind.SIGNALLED),
        ("start_daemon", {"then": "os._exit 0"}, EndKind.EXITED),
        ("start_nested_reaper", {}, EndKind.TIMED_OUT),
        ("start_subprocess", {}, EndKind.TIMED_OUT),
        ("start_fork_bomb", {"width": 30}, EndKind.TIMED_OUT),  # processes that replace each other
    ],
)
def test_whatever_a_worker_started_ends_with_it(
    witness: Witness, name: str, arguments: dict[str, object], expected: EndKind
) -> None:
    with Worker(Limits(call_s=2), preload=MODULE) as warm:
        end = warm.call(f"{MODULE}:{name}", {"witness": witness.path, **arguments})
    assert is_end(end, expected)
    assert witness.line()
    assert witness.is_closed()


def test_what_shares_the_group_ends_with_a_supervisor_that_is_killed(witness: Witness) -> None:
    with Worker(Limits(call_s=60)) as warm:
        assert warm.start() is None
        supervisor = parent_of(warm.pid or 0)

        def kill(_: object) -> None:
            witness.line()
            os.kill(supervisor, signal.SIGKILL)

        script = Path(witness.path).with_name("target.py")
        script.write_text(
            f"from {MODULE} import start_subprocess\n\n\n"
            "def run(witness, channel):\n    channel.fact(0)\n    start_subprocess(witness)\n"
        )
        assert is_end(warm.call(f"{script}:run", {"witness": witness.path}, on_fact=kill), EndKind.SIGNALLED)
    assert witness.is_closed()


PARENT = """
import os, signal, sys
from deepstack_harness.workers.limits import Limits
from deepstack_harness.workers.worker import Worker

worker = Worker(Limits(call_s=600))
{before}
worker.call("{module}:{name}", {{"witness": sys.argv[1]}})
{after}
"""
FORK = """
worker.start()
if os.fork() == 0:  # it holds the parent's end of the link open, and is no descendant of the worker
    signal.pause()
"""


def parent(witness: Witness, name: str, before: str = "", after: str = "") -> "subprocess.Popen[str]":
    script = PARENT.format(module=MODULE, name=name, before=before, after=after)
    return subprocess.Popen([sys.executable, "-c", script, witness.path], stderr=subprocess.PIPE, text=True)


@pytest.mark.usefixtures("reset_signals")
@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_worker_and_its_daemon_end_with_their_parent(witness: Witness, ending: signal.Signals) -> None:
    with parent(witness, "start_daemon", after=f'worker.call("{MODULE}:hang")') as running:
        daemon = int(witness.line())
        running.send_signal(ending)
        running.communicate()
    assert running.returncode == -ending
    assert witness.is_closed()
    assert has_ended(daemon)


def test_a_worker_ends_with_its_supervisor_though_the_parent_cannot_help(witness: Witness) -> None:
    with parent(witness, "tell_and_hang") as running:
        worker = int(witness.line())
        running.send_signal(signal.SIGSTOP)
        os.kill(parent_of(worker), signal.SIGKILL)
        assert witness.is_closed()
        running.kill()
        running.communicate()


def test_a_stopped_worker_ends_with_its_parent(witness: Witness) -> None:
    with parent(witness, "tell_and_hang") as running:
        os.kill(int(witness.line()), signal.SIGSTOP)
        running.kill()
        running.communicate()
    assert witness.is_closed()


def test_a_worker_ends_with_its_parent_though_a_fork_of_that_holds_the_link(witness: Witness) -> None:
    with parent(witness, "tell_and_hang", before=FORK) as running:
        worker = int(witness.line())
        (fork,) = (
            {int(pid) for pid in children_of(running.pid)}
            - {parent_of(parent_of(worker))}
            - {parent_of(worker)}
        )
        running.kill()
        running.wait()
        assert witness.is_closed()
        os.kill(fork, signal.SIGKILL)


def children_of(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def test_a_parent_that_forgets_its_worker_ends_it(witness: Witness) -> None:
    with parent(witness, "start_daemon") as running:
        _, printed = running.communicate()
    assert (running.returncode, printed) == (0, "")
    assert witness.is_closed()


def test_a_fork_of_the_parent_does_not_end_the_worker(witness: Witness) -> None:
    fork = "worker.start()\npid = os.fork()\nif pid == 0:\n    sys.exit(0)\nos.waitpid(pid, 0)\n"
    after = "print(worker.call('operator:add', {}).sentence, file=sys.stderr)"
    with parent(witness, "start_daemon", before=fork, after=after) as running:
        _, printed = running.communicate()
    assert printed.startswith("TypeError: ")


@pytest.mark.parametrize(
    "before",
    [
        "signal.signal(signal.SIGCHLD, signal.SIG_IGN)",
        "signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))",
    ],
)
def test_signals_that_the_parent_ignores_or_blocks_are_not_inherited(before: str) -> None:
    script = f"""
import signal
from deepstack_harness.workers.worker import Worker
{before}
with Worker() as worker:
    print(worker.call("{MODULE}:blocked_signals_and_status_of_a_child").value)
    print(worker.call("{MODULE}:report_and", {{"then": "exit 7"}}).sentence)
"""
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout == "[[], 3]\nexited with 7 in method get, step 3\n"


def test_children_are_found_without_the_kernel_s_list() -> None:
    with Worker() as warm:
        assert warm.start() is None
        assert set(child.child_processes()) == set(child.child_processes_by_stat()) != set()


def test_an_interpreter_that_cannot_be_supervised_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    refused: Any = type("Libc", (), {"prctl": staticmethod(lambda *_: -1)})
    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: refused)
    with pytest.raises(OSError, match="prctl 36"):
        child._prctl(36, 1)
    assert issubclass(HarnessError, Exception)


# Command lines


def shell(script: str, limits: Limits = LIMITS, **options: object) -> WorkerEnd:
    return run_command(Command(("sh", "-c", script), **options), limits)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("echo out; echo error >&2", end_of(0, output="out\nerror\n")),
        ("exit 7", end_of(7)),
        ("kill -SEGV $$", end_of(-signal.SIGSEGV)),
        ("cat", end_of(0)),
    ],
)
def test_a_command_ends_with_its_status_and_output(script: str, expected: WorkerEnd) -> None:
    assert shell(script) == expected


def test_what_it_prints_as_errors_may_be_dropped() -> None:
    assert shell("echo out; echo error >&2", stderr=False) == end_of(0, output="out\n")


def test_it_has_a_folder_and_an_environment_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GONE", "there")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    finished = shell(
        "pwd; echo $GIVEN-$GONE-$OMP_NUM_THREADS", folder=tmp_path, environment={"GIVEN": "a", "GONE": None}
    )
    assert finished.output == f"{tmp_path}\na--3\n"


def test_a_log_has_all_of_the_output_and_the_result_its_end(tmp_path: Path) -> None:
    log = tmp_path / "log"
    finished = shell("seq 100000", log=log)
    assert log.read_text().split() == [str(number) for number in range(1, 100001)]
    assert finished.output.endswith("99999\n100000\n")
    assert len(finished.output) == 6000


def test_what_a_reader_closed_ends_a_command_as_usual() -> None:
    """Python ignores SIGPIPE, and a program that inherits this goes on for ever."""
    # Not `head`, which closes its input before it writes: then either line may be the first.
    reader = "{ read -r line; echo $line; }"
    assert shell(f"(yes; echo $? >&2) | {reader}") == end_of(0, output="y\n141\n")


def test_a_command_that_takes_too_long_ends_with_what_it_started(witness: Witness) -> None:
    script = f"exec 3> {witness.path}; (setsid sleep 600 &) ; echo up >&3; sleep 600"
    end = shell(script, Limits(call_s=1))
    assert is_end(end, EndKind.TIMED_OUT)
    assert end.sentence == "no answer within 1 s"
    assert witness.line() == "up"
    assert witness.is_closed()


def test_a_daemon_does_not_outlive_a_command_that_ended_well(witness: Witness) -> None:
    assert shell(f"exec 3> {witness.path}; setsid sleep 600 & echo up >&3") == end_of(0)
    assert witness.is_closed()


def test_a_flood_ends_a_command() -> None:
    end = shell("yes", Limits(output=2**20))
    assert is_end(end, EndKind.FLOODED)
    assert end.details[0] < 2**26  # what was written until the limit was seen


def test_memory_and_files_are_limited(tmp_path: Path) -> None:
    eat = Command((sys.executable, "-c", "bytearray(2**30)"))
    assert "MemoryError" in run_command(eat, Limits(memory=2**28)).output
    write = f"head -c 2000000 /dev/zero > {tmp_path / 'long'}"
    assert shell(f"exec {write}", Limits(file_size=2**20)) == end_of(-signal.SIGXFSZ)


@pytest.mark.parametrize("word", ["no-such-command", "/etc/passwd"])
def test_a_command_that_cannot_be_executed_gives_the_reason(word: str) -> None:
    with pytest.raises(OSError, match="No such file or directory|Permission denied"):
        run_command(Command((word,)), LIMITS)


@pytest.mark.usefixtures("reset_signals")
def test_an_interrupt_ends_a_command_and_goes_on(witness: Witness) -> None:
    interrupter = threading.Thread(target=interrupt_after, args=(witness.line,))
    interrupter.start()
    with pytest.raises(KeyboardInterrupt):
        shell(f"exec 3> {witness.path}; echo up >&3; sleep 600")
    interrupter.join()
    assert witness.is_closed()


def test_a_command_ends_with_the_process_that_started_it(witness: Witness) -> None:
    script = """
import sys
from deepstack_harness.workers.supervised import Command, run_command
from deepstack_harness.workers.limits import Limits
run_command(Command(("sh", "-c", sys.argv[1])), Limits(call_s=600))
"""
    hangs = f"exec 3> {witness.path}; (setsid sleep 600 &) ; echo up >&3; sleep 600"
    with subprocess.Popen([sys.executable, "-c", script, hangs]) as parent:
        witness.line()
        parent.kill()
    assert witness.is_closed()


def test_no_stream_is_left_open() -> None:
    before = open_streams()
    shell("exit 3")
    with pytest.raises(FileNotFoundError):
        run_command(Command(("no-such-command",)), LIMITS)
    assert open_streams() == before


def test_a_command_that_starts_too_many_processes_is_ended() -> None:
    end = shell(
        "for each in 1 2 3 4 5 6; do sleep 60 & done; echo started; wait", Limits(processes=3, call_s=60)
    )
    assert is_end(end, EndKind.CROWDED), end
    count, limit = end.details
    assert count > limit == 3


def test_a_request_waits_while_its_pipe_is_full() -> None:
    pipes = MessagePipes()
    left: list[int] = []
    pipes._process = cast(Supervised, SimpleNamespace(unregister=left.append))
    os.set_blocking(pipes._requests, False)
    filled = os.write(pipes._requests, bytes(2**20))
    pipes._outbox = memoryview(b"request\n")
    pipes._write()
    assert (bytes(pipes._outbox), left) == (b"request\n", [])
    os.read(pipes.for_requests, filled)
    pipes._write()
    assert (bytes(pipes._outbox), left) == (b"", [pipes._requests])
    assert os.read(pipes.for_requests, 99) == b"request\n"
    pipes.close_theirs()
    pipes.close()
