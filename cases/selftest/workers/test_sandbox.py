"""A sandbox refuses what reaches outside of a worker, and lets through what code under test needs."""

import ctypes
import logging
import os
import select
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, chdir
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cases.selftest.workers.processes import Witness, reachable_folder
from deepstack_harness.errors import MachineError
from deepstack_harness.workers import profiles, sandbox
from deepstack_harness.workers.limits import Limits
from deepstack_harness.workers.outcomes import Answered, CallResult, EndKind, RaisedInWorker, is_end
from deepstack_harness.workers.profiles import (
    COMPILE,
    CONTRACT,
    CUDA,
    NO_SANDBOX,
    RANKS,
    confine,
    switched_off,
)
from deepstack_harness.workers.worker import Worker

MODULE = "cases.selftest.workers.attempts"
FILES = [
    "write_file", "write_over", "truncate", "remove_file", "rename_file", "link_out", "make_folder",
    "make_fifo",
]  # fmt: skip
ATTRIBUTES = ["change_mode", "change_times", "change_owner", "set_attribute"]
NETWORK = ["open_tcp", "send_udp", "connect_path", "reconnect_pair"]
PROCESSES = ["fork", "run_program", "spawn"]
MACHINE = ["signal_another", "limit_another", "open_memory_of_another", "set_up_io_uring", "make_namespace"]
REFUSED = {
    CONTRACT.name: [*FILES, *ATTRIBUTES, *NETWORK, *PROCESSES, *MACHINE],
    COMPILE.name: [*FILES, *NETWORK, *MACHINE],
    RANKS.name: [*FILES, *MACHINE],
    CUDA.name: [*FILES, *MACHINE],
}


def missing_here() -> str:
    """Return the parts of a sandbox that this system does not offer; "" for none."""
    with Worker(sandbox=RANKS) as worker:
        worker.start()
        return "; ".join(worker.in_force.missing) if worker.in_force.in_force else "no sandbox"


pytestmark = pytest.mark.skipif(bool(missing := missing_here()), reason=missing)


@pytest.fixture
def outside(tmp_path: Path) -> Iterator[str]:
    """A folder with a file, two servers, and the process id of a process outside."""
    (tmp_path / "there").write_text("kept")
    (tmp_path / "pid").write_text(str(os.getpid()))
    with ExitStack() as stack:
        for name, kind in (("server", socket.SOCK_STREAM), ("datagrams", socket.SOCK_DGRAM)):
            server = stack.enter_context(socket.socket(socket.AF_UNIX, kind))
            with chdir(tmp_path):  # the address of a socket has 108 bytes at most
                server.bind(name)
            if kind == socket.SOCK_STREAM:
                server.listen()
        yield str(tmp_path)


@pytest.fixture(scope="module")
def workers() -> Iterator[dict[str | None, Worker]]:
    """A worker for each profile, and one without; attempts that are refused leave them as they are."""
    with ExitStack() as stack:
        made = {
            profile.name: stack.enter_context(Worker(sandbox=profile))
            for profile in (CONTRACT, COMPILE, RANKS, CUDA)
        }
        plain: dict[str | None, Worker] = {None: stack.enter_context(Worker())}
        plain.update(made)
        yield plain


def attempt(worker: Worker, name: str, **arguments: object) -> CallResult:
    return worker.call(f"{MODULE}:{name}", arguments)


def value(worker: Worker, name: str, **arguments: object) -> Any:  # noqa: ANN401  # JSON
    result = attempt(worker, name, **arguments)
    assert isinstance(result, Answered), result
    return result.value


@pytest.mark.parametrize(
    ("profile", "name"),
    [(profile, name) for profile, names in REFUSED.items() for name in names],
)
def test_an_attempt_to_reach_outside_is_refused(
    workers: dict[str | None, Worker], outside: str, profile: str, name: str
) -> None:
    before = sorted(Path(outside).iterdir())
    result = attempt(workers[profile], name, outside=outside)
    assert isinstance(result, RaisedInWorker), result
    assert result.type in ("PermissionError", "OSError"), result
    assert (sorted(Path(outside).iterdir()), Path(outside, "there").read_text()) == (before, "kept")


@pytest.mark.parametrize("name", [*FILES, *ATTRIBUTES, *NETWORK, *PROCESSES, *MACHINE])
def test_the_same_attempt_succeeds_without_a_sandbox(
    workers: dict[str | None, Worker], outside: str, name: str
) -> None:
    if (
        name in ("change_owner", "set_up_io_uring", "make_namespace", "open_memory_of_another")
        and os.getuid()
    ):
        pytest.skip("needs root")
    result = attempt(workers[None], name, outside=outside)
    if name in ("set_attribute", "set_up_io_uring", "make_namespace") and isinstance(result, RaisedInWorker):
        pytest.skip(f"not offered here: {result.sentence}")
    assert isinstance(result, Answered), result


@pytest.mark.parametrize("profile", [CONTRACT.name, COMPILE.name, RANKS.name, CUDA.name])
def test_code_under_test_has_threads_and_a_folder(workers: dict[str | None, Worker], profile: str) -> None:
    folder = value(workers[profile], "write_to_own_folder")
    assert value(workers[profile], "start_thread") == [1]
    assert Path(folder).parent.name.startswith("deepstack-worker-")


def test_torch_works_in_the_strictest_profile(workers: dict[str | None, Worker]) -> None:
    assert value(workers[CONTRACT.name], "multiply") == 64**3


@pytest.mark.slow  # 30 s: a compile with an empty cache
def test_inductor_compiles_in_its_profile(tmp_path: Path) -> None:
    caches = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor")}
    with Worker(sandbox=COMPILE, environment=caches) as worker:
        assert value(worker, "compile_sum") == 16
    assert list((tmp_path / "inductor").rglob("*.so"))


def test_a_cache_that_nobody_named_is_the_worker_s_own() -> None:
    with Worker(sandbox=COMPILE, environment=dict.fromkeys(profiles.CACHES)) as worker:
        seen = value(worker, "environment")
    assert all(seen[name].startswith(f"{seen['TMPDIR']}/") for name in profiles.CACHES)


@pytest.mark.slow  # ranks meet by day in play/test_ranks.py
def test_ranks_meet_over_a_network_of_their_own(workers: dict[str | None, Worker]) -> None:
    assert value(workers[RANKS.name], "gather") == 4.0
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert value(workers[None], "connect", port=port) is True
        result = attempt(workers[RANKS.name], "connect", port=port)
    assert isinstance(result, RaisedInWorker)
    assert result.type == "ConnectionRefusedError"


@pytest.mark.parametrize("then", ["close", "crash"])
def test_the_folder_of_a_worker_ends_with_it(then: str) -> None:
    with Worker(sandbox=COMPILE) as worker:
        folder = Path(value(worker, "leave_deep_folders"))
        assert (folder / "d/d/d").is_dir()
        if then == "crash":
            worker.call("os:abort")
    assert not folder.exists()
    assert Path("/etc").is_dir()


def test_it_ends_with_a_parent_that_is_killed() -> None:
    script = (
        "import os, signal\nfrom deepstack_harness.workers.worker import Worker\n"
        "from deepstack_harness.workers.profiles import CONTRACT\nworker = Worker(sandbox=CONTRACT)\n"
        "worker.start()\nprint(worker._confinement.folder, worker._process._supervisor.pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        folder, supervisor = running.stdout.readline().split()
        watched = os.pidfd_open(int(supervisor))
    select.select([watched], [], [], 60)
    os.close(watched)
    assert not Path(folder).exists()


def test_a_worker_with_too_many_processes_is_ended(witness: Witness) -> None:
    with Worker(Limits(processes=40, call_s=60)) as worker:
        end = worker.call(f"{MODULE}:multiply_processes", {"count": 8, "witness": witness.path})
    assert is_end(end, EndKind.CROWDED), end
    count, limit = end.details
    assert count > limit == 40
    assert end.reason == f"had {count} processes or more, the limit is 40"
    assert witness.is_closed()


def test_as_many_processes_as_the_limit_are_allowed() -> None:
    with Worker(Limits(processes=2)) as worker:
        for _ in range(3):
            assert isinstance(attempt(worker, "run_program", outside=""), Answered)


def test_the_switch_turns_it_off_and_back_on(monkeypatch: pytest.MonkeyPatch, outside: str) -> None:
    monkeypatch.delenv(NO_SANDBOX, raising=False)
    with switched_off(), Worker(sandbox=CONTRACT) as worker:
        assert isinstance(attempt(worker, "write_file", outside=outside), Answered)
        assert not worker.in_force.in_force
    assert not profiles.is_switched_off()


def test_one_warning_names_the_missing_parts(
    monkeypatch: pytest.MonkeyPatch, logged: list[logging.LogRecord]
) -> None:
    monkeypatch.setattr(profiles, "_WARNED", [])
    for _ in range(2):
        in_force = profiles.parts_in_force({"in_force": ["a"], "missing": ["no writes outside: not here"]})
        assert not in_force.is_whole
    (record,) = logged
    assert record.levelno == logging.WARNING
    assert "no writes outside: not here" in record.getMessage()
    assert "--no-sandbox" in record.getMessage()


def test_missing_parts_of_a_system_are_named_and_the_others_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    rules = {"writable": [], "network": "none", "processes": True, "attributes": True}
    monkeypatch.setattr(sandbox, "_landlock", lambda _: (_ for _ in ()).throw(OSError(38, "Not implemented")))
    monkeypatch.setattr(sandbox, "_seccomp", lambda _: "filter")
    monkeypatch.setattr(sandbox, "_drop_capabilities", lambda _: "none left")
    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: type("Libc", (), {"prctl": lambda *_: 0})())
    assert sandbox.enter(rules) == {
        "in_force": ["none left", "filter"],
        "missing": ["no writes outside: Not implemented"],
    }
    monkeypatch.setattr(sys, "platform", "darwin")
    assert "darwin" in sandbox.enter(rules)["missing"][0]


UNPRIVILEGED = """
import os, socket, sandbox
assert os.getuid() == 65534
own = os.getcwd()
for network in ("loopback", "none"):
    rules = {"writable": [own], "network": network, "processes": True, "attributes": True}
    pid = os.fork()
    if pid == 0:
        print(network, sandbox.enter(rules)["missing"])
        open(own + "/made", "w").close()
        if network == "loopback":
            socket.create_server(("127.0.0.1", 0)).close()
        try:
            open(own + "/../made", "w")
        except PermissionError:
            os._exit(0)
        os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0
"""


@pytest.mark.skipif(os.getuid() != 0 or not shutil.which("setpriv"), reason="only root becomes another user")
def test_it_works_for_an_unprivileged_user() -> None:
    with reachable_folder() as top:  # the file needs no environment of ours
        own = Path(top, "own")
        own.mkdir()
        shutil.copy(sandbox.__file__, own)
        for folder in (Path(top), own):
            folder.chmod(0o777)
        user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
        python = [*user, str(Path(sys.executable).resolve()), "-c"]
        run = partial(
            subprocess.run,
            cwd=own,
            capture_output=True,
            text=True,
            env={"PYTHONUNBUFFERED": "1"},
            check=False,
        )
        started = run([*python, "pass"])
        if started.returncode:
            pytest.skip(f"this interpreter is closed to other users: {started.stderr.strip()}")
        ran = run([*python, UNPRIVILEGED])
        assert (ran.stdout, ran.stderr) == ("loopback []\nnone []\n", "")
        assert (own / "made").exists()
        assert not Path(top, "made").exists()


def test_a_worker_without_room_for_its_folder_is_not_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(**_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tempfile.mkdtemp", full)
    with pytest.raises(MachineError, match="no folder can be made for a worker: .*No space left on device"):
        confine(CONTRACT, {})
