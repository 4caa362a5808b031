"""Workers that are forks of a server: they start sooner than others, and differ from them in nothing else."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from cases.selftest.workers.processes import Witness, has_ended, parent_of
from deepstack_harness.workers import fork_server, forked, supervised
from deepstack_harness.workers.limits import Limits
from deepstack_harness.workers.outcomes import Answered, CallResult, EndKind, is_end
from deepstack_harness.workers.profiles import CONTRACT
from deepstack_harness.workers.worker import Worker

MODULE = "cases.selftest.workers.misbehaving"
SHORT_S = 0.5


def server_of(worker: Worker) -> int:
    """Return the process id of what started the worker's supervisor."""
    assert worker.start() is None
    return parent_of(parent_of(worker.pid or 0))


def value(result: CallResult) -> object:
    assert isinstance(result, Answered)
    return result.value


def test_workers_of_this_process_are_forks_of_one_server() -> None:
    with Worker(preload=MODULE) as first, Worker(preload=MODULE) as second:
        assert server_of(first) == server_of(second) != os.getpid()
        assert first.pid != second.pid
        assert first.pid is not None
        assert os.getsid(first.pid) == first.pid


@pytest.mark.parametrize("how", ["switched off", "no module", "a folder", "an interpreter", "a long setting"])
def test_others_are_programs_of_their_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, how: str) -> None:
    monkeypatch.setenv(forked.NO_FORK_SERVER, str(int(how == "switched off")))
    if how == "a long setting":  # longer than a message to the server, which starts without it
        monkeypatch.setattr(fork_server, "LONGEST", 100)
    with Worker(
        preload=None if how in ("no module", "an interpreter") else MODULE,
        folder=tmp_path if how == "a folder" else None,
        interpreter=sys.executable if how == "an interpreter" else None,
    ) as worker:
        assert server_of(worker) == os.getpid()


def test_a_module_of_somebody_else_is_imported_by_its_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forked, "SERVED", "deepstack_harness.")
    with Worker(preload=MODULE) as other, Worker(preload="deepstack_harness.errors") as ours:
        assert server_of(other) == os.getpid() != server_of(ours)


@pytest.mark.parametrize("name", ["DEEPSTACK_HARNESS_SEEN", "COLUMNS"])
def test_a_variable_of_a_worker_differs_from_fork_to_fork(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    servers = set()
    for batch in ("1", "2", None):
        monkeypatch.delenv(name, raising=False) if batch is None else monkeypatch.setenv(name, batch)
        with Worker(preload=MODULE) as worker:
            servers.add(server_of(worker))
            assert value(worker.call("os:getenv", {"key": name})) == batch
    assert len(servers) == 1


def test_another_environment_or_path_is_another_server_and_the_last_two_stay(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "6")  # not the server of workers that other tests have left
    with Worker(preload=MODULE) as before:
        old = server_of(before)
        with pytest.MonkeyPatch.context() as other:
            other.setenv("PYTHONHASHSEED", "7")
            with Worker(preload=MODULE) as worker:
                assert value(worker.call("os:getenv", {"key": "PYTHONHASHSEED"})) == "7"
                second = server_of(worker)
        with Worker(preload=MODULE) as worker:
            assert server_of(worker) == old != second
        monkeypatch.syspath_prepend(tmp_path)
        with Worker(preload=MODULE) as worker:
            assert server_of(worker) not in {old, second}
        assert has_ended(second)
        monkeypatch.setenv("PYTHONHASHSEED", "8")
        with Worker(preload=MODULE) as worker:
            assert server_of(worker) != old
        assert value(before.call(f"{MODULE}:double", {"number": 2})) == 4
    assert has_ended(old)


def test_what_surrounds_a_fork_surrounds_a_program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen = []
    with Worker(preload=MODULE) as first:
        server_of(first)
        monkeypatch.chdir(tmp_path)
        for served in ("", "nothing"):
            monkeypatch.setattr(forked, "SERVED", served)
            with Worker(preload=MODULE, environment={"TMPDIR": "/a"}) as worker:
                assert (server_of(worker) == os.getpid()) == (served == "nothing")
                actual = value(worker.call(f"{MODULE}:surroundings", {"names": [*os.environ, "TMPDIR"]}))
                assert isinstance(actual, dict)
                assert actual.pop("pid") == actual.pop("group")
                seen.append({**actual, "open": len(actual["open"])})
    assert seen[0] == seen[1]
    assert seen[0]["folder"] == str(tmp_path)
    assert seen[0]["environment"]["TMPDIR"] == "/a"


@pytest.mark.parametrize("served", ["", "nothing"])
def test_the_folder_for_temporary_files_is_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, served: str
) -> None:
    (tmp_path / "asks_early.py").write_text("import tempfile\ntempfile.gettempdir()\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(forked, "SERVED", served)
    for _ in range(2):
        with Worker(preload="asks_early", sandbox=CONTRACT) as worker:
            own = value(worker.call("os:getenv", {"key": "TMPDIR"}))
            assert value(worker.call("tempfile:gettempdir")) == own


def test_a_server_that_does_not_end_is_killed_only_by_its_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forked, "_GRACE_S", 0.0)
    door, theirs = socket.socketpair()
    with theirs, subprocess.Popen(["sleep", "600"]) as process:
        forked._end(os.getpid() + 1, door, process)
        assert process.poll() is None
        forked._end(os.getpid(), door, process)
        assert process.returncode == -signal.SIGKILL


# Imports in the server


def test_an_import_without_end_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervised, "GRACE_S", 0.2)
    (tmp_path / "endless.py").write_text("import threading\nthreading.Event().wait()\n")
    monkeypatch.syspath_prepend(tmp_path)
    with Worker(Limits(start_s=SHORT_S), preload="endless") as child:
        end = child.start()
    assert is_end(end, EndKind.TIMED_OUT)
    with Worker(preload=MODULE) as child:
        assert value(child.call(f"{MODULE}:double", {"number": 1})) == 2


def test_a_module_that_starts_a_thread_is_imported_by_each_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "threaded.py").write_text(
        "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    for _ in range(2):
        with Worker(preload="threaded", sandbox=CONTRACT) as child:
            assert value(child.call("threading:active_count")) == 2
            assert child.in_force.in_force


def test_what_an_import_prints_belongs_to_the_first_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "talks.py").write_text("import os\nos.write(2, b'hello')\n")
    monkeypatch.syspath_prepend(tmp_path)
    printed = []
    for _ in range(2):
        with Worker(Limits(call_s=SHORT_S), preload="talks") as child:
            assert child.start() is None
            child.close()
            assert child.ended is not None
            printed.append(child.ended.output)
    assert printed == ["hello", ""]


# Ends


def test_a_server_that_is_killed_takes_its_workers_with_it_and_is_replaced(witness: Witness) -> None:
    with Worker(Limits(call_s=60), preload=MODULE) as child:
        server = server_of(child)
        end = child.call(
            f"{MODULE}:start_daemon_and_hang", {"witness": witness.path},
            on_fact=lambda _: os.kill(server, signal.SIGKILL),
        )  # fmt: skip
        assert is_end(end, EndKind.SIGNALLED)
    assert witness.is_closed()
    with Worker(preload=MODULE) as child:
        assert server_of(child) != server


def test_a_killed_supervisor_is_reported_and_the_server_goes_on() -> None:
    with Worker(Limits(call_s=60), preload=MODULE) as child:
        server = server_of(child)
        end = child.call(f"{MODULE}:report_and", {"then": "kill supervisor"})
        assert is_end(end, EndKind.SIGNALLED)
        assert end.reason == "ended by SIGKILL"
    with Worker(preload=MODULE) as other:
        assert server_of(other) == server


PARENT = """
import os, signal, sys
from deepstack_harness.workers import forked
from deepstack_harness.workers.worker import Worker

with Worker(preload="deepstack_harness.errors") as worker:
    worker.call("cases.selftest.workers.misbehaving:start_daemon", {"witness": sys.argv[1]})
    fork = os.fork() if sys.argv[2] == "killed beside a fork" else 0
    if sys.argv[2] == "killed beside a fork" and fork == 0:  # it holds every stream of its parent open
        os.closerange(0, 3)
        signal.pause()
    print(forked._SERVERS[0].process.pid, fork, flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("how", ["ended", "killed", "killed beside a fork"])
def test_a_server_ends_with_its_parent(witness: Witness, how: str) -> None:
    command = [sys.executable, "-W", "error", "-c", PARENT, witness.path, how]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        server, fork = map(int, parent.stdout.readline().split())
        if how != "ended":
            parent.kill()
        _, printed = parent.communicate()
    try:
        assert (parent.returncode, printed) == (0 if how == "ended" else -signal.SIGKILL, "")
        assert witness.is_closed()
        assert has_ended(server)
    finally:
        if fork:
            os.kill(fork, signal.SIGKILL)
