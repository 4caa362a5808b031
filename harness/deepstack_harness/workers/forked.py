"""Workers as forks of a process that has imported what they need: the parent's half of `workers.fork_server`.

multiprocessing's fork server was considered. It imports the main module of this program into each of its
processes, there is one of it for all that a program does with multiprocessing, and its environment is that
of whoever came first.
"""

import errno
import json
import os
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from deepstack_harness.workers import child, fork_server
from deepstack_harness.workers.profiles import CACHES

NO_FORK_SERVER = "DEEPSTACK_HARNESS_NO_FORK_SERVER"
"""Environment variable that makes every worker import for itself."""
SERVED = "deepstack_harness."
"""Beginning of the names of modules that a fork server imports: our own, which bring torch."""
_GRACE_S = 10.0
"""Seconds that a fork server has to end; then it is killed."""
_OF_A_WORKER = ("COLUMNS", "TMPDIR", *CACHES)
"""Variables that differ from worker to worker and are read when they are needed, not at an import."""
_OF_EACH_WORKER = ("DEEPSTACK_HARNESS_", "PYTEST_")


class ForkedSupervisor:
    """A supervisor that a fork server started, with what `Supervised` needs of a `subprocess.Popen`."""

    def __init__(self, server: "_ForkServer", control: socket.socket, output: IO[bytes]) -> None:
        """Take the control socket and the stream of the output, and close both in the end."""
        self.stdout: IO[bytes] = output
        self._server: _ForkServer | None = server  # which ends when nothing refers to it
        self._process = server.process
        self._control = control
        self._heard = b""
        self._status: int | None = None

    def kill(self) -> None:
        """Kill it; where it was not forked yet, because an import hangs, kill the server."""
        with suppress(OSError):
            self._control.send(b"k")
        with suppress(OSError):
            self._heard += self._control.recv(64, socket.MSG_DONTWAIT)
        if not self._heard:
            self._process.kill()

    def wait(self) -> int:
        """Wait until it has ended, and return its exit status, that of the server where it ended with it."""
        while self._status is None:
            try:
                chunk = self._control.recv(64)
            except ConnectionResetError:
                chunk = b""
            self._heard += chunk
            *lines, _ = self._heard.split(b"\n")
            if len(lines) > 1:
                self._status = int(lines[1])
            elif not chunk:
                self._status = self._process.wait()
        self._control.close()
        self._server = None
        return self._status


class _ForkServer:
    """A fork server for workers with one `sys.path` and, but for variables of their own, one environment."""

    def __init__(self, path: list[str], environment: Mapping[str, str]) -> None:
        """Start it without waiting; raises `OSError` where that is impossible."""
        self.path, self.environment, self.owner = path, environment, os.getpid()
        # Each request is one message.
        self._door, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        settings = {"door": theirs.fileno(), "path": path, "parent": self.owner}
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-u", child.__file__, json.dumps(settings)], env=environment, cwd="/",
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()], start_new_session=True,
            )  # fmt: skip
        # Its workers hold this object: when it is collected, or the interpreter exits, they have ended.
        weakref.finalize(self, _end, self.owner, self._door, self.process)

    def serves(self, path: list[str], environment: Mapping[str, str]) -> bool:
        """Return whether a fork of the server has this `sys.path` and this environment."""
        ours, theirs = (
            {name: value for name, value in variables.items() if not _is_of_a_worker(name)}
            for variables in (self.environment, environment)
        )
        return self.owner == os.getpid() and self.path == path and ours == theirs

    def fork(self, settings: Mapping[str, Any], environment: Mapping[str, str]) -> ForkedSupervisor:
        """Request a supervisor, without waiting; raises `OSError` where the server has ended."""
        own = {name for name in {*self.environment, *environment} if _is_of_a_worker(name)}
        request = json.dumps({
            "settings": settings, "environment": {name: environment.get(name) for name in own},
            "folder": str(Path.cwd()),
        }).encode()  # fmt: skip
        if len(request) > fork_server.LONGEST:
            raise OSError(errno.EMSGSIZE, os.strerror(errno.EMSGSIZE))
        output, theirs = os.pipe()
        control, other = socket.socketpair()
        with os.fdopen(theirs, "wb"), other:
            supervisor = ForkedSupervisor(self, control, os.fdopen(output, "rb", buffering=0))
            streams = [other.fileno(), theirs, *(settings[name] for name in fork_server.STREAMS[2:])]
            try:
                socket.send_fds(self._door, [request], streams)
            except BaseException:
                supervisor.stdout.close()
                control.close()
                raise
        return supervisor


def _end(owner: int, door: socket.socket, process: "subprocess.Popen[bytes]") -> None:
    """Let a server end with the last of its forks; not from a fork of its owner."""
    door.close()
    if os.getpid() != owner:
        return
    try:
        process.wait(_GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _is_of_a_worker(name: str) -> bool:
    return name in _OF_A_WORKER or name.startswith(_OF_EACH_WORKER)


_LOCK = threading.Lock()
_SERVERS: list[_ForkServer] = []
"""The servers of this process, the one that was used last first."""
_MOST_SERVERS = 2
"""Servers of other paths or environments that wait for a worker: each has torch in memory, 300 MB.

Whoever judges several sources goes from one environment to another and back; a start costs 2 to 4 s."""


def start_forked(settings: Mapping[str, Any], environment: Mapping[str, str]) -> ForkedSupervisor | None:
    """Start the supervisor of a worker as a fork; return None where it has to be started as a program.

    `settings` are those of `child.main`. A worker that needs another path or environment than the last two
    gets a new server; the one that was used least recently ends with its workers.
    """
    preload, path = settings["preload"], settings["path"]
    if sys.platform != "linux" or not preload or not path or not preload.startswith(SERVED):
        return None
    if os.environ.get(NO_FORK_SERVER, "") not in ("", "0"):
        return None
    with _LOCK:
        server = next((server for server in _SERVERS if server.serves(path, environment)), None)
        others = [other for other in _SERVERS if other is not server]
        try:
            server = server or _ForkServer(path, environment)
            forked = server.fork(settings, environment)
        except OSError:
            _SERVERS[:] = others
            return None
        _SERVERS[:] = [server, *others][:_MOST_SERVERS]
        return forked
