"""No process is left, whatever a worker started, and however the worker or its parent ended."""

import ctypes
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cases.selftest.workers.processes import Witness, has_ended, parent_of
from deepstack_harness.errors import HarnessError
from deepstack_harness.workers import child
from deepstack_harness.workers.limits import Limits
from deepstack_harness.workers.outcomes import Answered, Exited, Signalled, TimedOut
from deepstack_harness.workers.worker import Worker

MODULE = "cases.selftest.workers.misbehaving"


def test_a_daemon_lives_as_long_as_its_worker(witness: Witness) -> None:
    with Worker() as warm:
        assert isinstance(warm.call(f"{MODULE}:start_daemon", {"witness": witness.path}), Answered)
        daemon = int(witness.line())
        os.kill(daemon, 0)  # it is there
        assert isinstance(warm.call(f"{MODULE}:double", {"number": 1}), Answered)
        os.kill(daemon, 0)
    assert witness.is_closed()


@pytest.mark.parametrize(
    ("then", "expected"),
    [("hang", TimedOut), ("stop", TimedOut), ("crash", Signalled), ("os._exit 0", Exited)],
)
def test_a_daemon_ends_with_its_worker(witness: Witness, then: str, expected: type) -> None:
    with Worker(Limits(call_s=2), preload=MODULE) as warm:
        end = warm.call(f"{MODULE}:start_daemon", {"witness": witness.path, "then": then})
    assert isinstance(end, expected)
    assert witness.line()
    assert witness.is_closed()


@pytest.mark.parametrize("name", ["start_nested_reaper", "start_subprocess"])
def test_so_does_every_other_descendant(witness: Witness, name: str) -> None:
    with Worker(Limits(call_s=2), preload=MODULE) as warm:
        assert isinstance(warm.call(f"{MODULE}:{name}", {"witness": witness.path}), TimedOut)
    assert witness.line()
    assert witness.is_closed()


def test_processes_that_replace_each_other_are_caught(witness: Witness) -> None:
    arguments = {"witness": witness.path, "width": 30}
    with Worker(Limits(call_s=2), preload=MODULE) as warm:
        assert isinstance(warm.call(f"{MODULE}:start_fork_bomb", arguments), TimedOut)
    assert witness.line() == "started"
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
        assert isinstance(warm.call(f"{script}:run", {"witness": witness.path}, on_fact=kill), Signalled)
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


@pytest.mark.parametrize("told", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_worker_and_its_daemon_end_with_their_parent(witness: Witness, told: signal.Signals) -> None:
    with parent(witness, "start_daemon", after=f'worker.call("{MODULE}:hang")') as running:
        daemon = int(witness.line())
        running.send_signal(told)
        running.communicate()
    assert running.returncode == -told
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
        _, said = running.communicate()
    assert (running.returncode, said) == (0, "")
    assert witness.is_closed()


def test_a_fork_of_the_parent_does_not_end_the_worker(witness: Witness) -> None:
    fork = "worker.start()\npid = os.fork()\nif pid == 0:\n    sys.exit(0)\nos.waitpid(pid, 0)\n"
    after = "print(worker.call('operator:add', {}).sentence, file=sys.stderr)"
    with parent(witness, "start_daemon", before=fork, after=after) as running:
        _, said = running.communicate()
    assert said.startswith("TypeError: ")


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


def test_an_interpreter_that_cannot_be_supervised_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    refused: Any = type("Libc", (), {"prctl": staticmethod(lambda *_: -1)})
    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: refused)
    with pytest.raises(OSError, match="prctl 36"):
        child._prctl(36, 1)
    assert issubclass(HarnessError, Exception)
