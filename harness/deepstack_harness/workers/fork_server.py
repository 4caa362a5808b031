"""The child half of a fork server: a process that imports modules once, and forks a worker for each request.

Like `child`, which loads this file by its path, it needs the standard library of Python 3.11 to 3.14 and
nothing else. An import of torch takes 1.5 s of processor time, a fork of a process that has imported it 20
ms. The fork is safe: the server has one thread, and runs imports of our own modules and no more; code under
test runs only in the forks.

Settings of the server, in which `child` finds it by `door`:

    door      inherited socket: requests are read from it; end of file means "fork no more"
    path      entries that replace `sys.path`
    parent    process id of the process that started the server

A request is one message: a JSON object, and the streams that are named in `STREAMS`.

    settings      those of `child.main`, without its streams and its parent
    environment   variables in which the worker differs from the server; null removes one
    folder        working directory

The server writes a line to `control` when it has forked the supervisor, "started", and when that has ended,
its exit status. One byte the other way kills the supervisor.
"""

import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

STREAMS = ("control", "output", "link", "requests", "results")
"""Streams of a request; all but `control` are for the worker and its supervisor."""
LONGEST = 1 << 17
"""Bytes of the longest request."""
_PARENT_CHECK_MS = 1000
"""Milliseconds between two looks at the parent: a server ends a second after it at the latest."""


def serve(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Serve requests; return in each fork the settings that make `child.main` its supervisor.

    The server itself ends when the door is closed and all of its forks have ended.
    """
    sys.path[:] = settings["path"]
    return _Server(settings).run()


class _Server:
    """The door, and the control socket of each supervisor that runs, by its process id."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._parent: int = settings["parent"]
        self._door: socket.socket | None = socket.socket(fileno=settings["door"])
        self._controls: dict[int, socket.socket] = {}
        self._deaf: set[int] = set()
        """Process ids whose control socket the other side has closed."""
        self._signals, self._wakeup = os.pipe()
        for end in (self._signals, self._wakeup):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(self._wakeup, warn_on_full_buffer=False)
        # Python writes the number of a signal into the pipe only if the signal has a handler.
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def run(self) -> dict[str, Any]:
        while self._door is not None or self._controls:
            ready = self._wait()
            if os.getppid() != self._parent:  # each supervisor sees that we end, and ends its tree
                os._exit(1)
            if self._signals in ready:
                self._reap()
            for pid, control in self._controls.items():
                if control.fileno() in ready:
                    self._take_order(pid, control)
            if self._door is not None and self._door.fileno() in ready:
                settings = self._take_request(self._door)
                if settings is not None:
                    return settings
        os._exit(0)

    def _wait(self) -> set[int]:
        """Return the streams that can be read, after a second at the latest."""
        poll = select.poll()
        poll.register(self._signals, select.POLLIN)
        if self._door is not None:
            poll.register(self._door, select.POLLIN)
        for pid, control in self._controls.items():
            if pid not in self._deaf:
                poll.register(control, select.POLLIN)
        return {stream for stream, _ in poll.poll(_PARENT_CHECK_MS)}

    def _reap(self) -> None:
        with suppress(BlockingIOError):
            os.read(self._signals, 4096)
        while self._controls:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            with self._controls.pop(pid) as control:
                _send_line(control, os.waitstatus_to_exitcode(status))

    def _take_order(self, pid: int, control: socket.socket) -> None:
        try:
            order = control.recv(1)
        except ConnectionResetError:
            order = b""
        if order:
            os.kill(pid, signal.SIGKILL)  # it is not reaped: the number is still its own
        else:
            # The parent has ended, or will. To kill the supervisor would leave daemons of its tree running.
            self._deaf.add(pid)

    def _take_request(self, door: socket.socket) -> dict[str, Any] | None:
        """Read a request and fork; return the settings in the fork, None in the server."""
        text, streams, _, _ = socket.recv_fds(door, LONGEST, len(STREAMS))
        if not text:
            door.close()
            self._door = None
            return None
        request = json.loads(text)
        control, output, link, requests, results = streams
        settings = {
            **request["settings"], "parent": os.getpid(),
            "link": link, "requests": requests, "results": results,
        }  # fmt: skip
        _import(settings["preload"], output, results)
        threads = len(os.listdir("/proc/self/task"))  # noqa: PTH208  # pathlib takes 20 ms to import
        pid = os.fork()
        if pid != 0:
            for stream in (output, link, requests, results):
                os.close(stream)
            self._controls[pid] = socket.socket(fileno=control)
            _send_line(self._controls[pid], "started")
            return None
        os.close(control)
        self._close()
        _become_supervisor(request, output)
        if threads > 1:  # locks of the other threads may be held for ever here
            _execute(settings)
        return settings

    def _close(self) -> None:
        """Give back in a fork what belongs to the server."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for stream in (self._signals, self._wakeup):
            os.close(stream)
        for opened in filter(None, (self._door, *self._controls.values())):
            opened.close()


def _import(module: str, output: int, results: int) -> None:
    """Import a module, and print to the output of the worker that is the first to need it."""
    if module in sys.modules:
        return
    phase = {"call": 0, "kind": "phase", "value": f"the import of {module}"}
    os.write(results, json.dumps(phase).encode() + b"\n")
    silent = os.dup(1)
    _print_to(output)
    # A worker that finds it missing imports it again, and reports the error.
    with suppress(BaseException):
        importlib.import_module(module)
    _print_to(silent)
    os.close(silent)
    gc.freeze()  # a collection in a fork would write to, and so copy, the memory of all that is imported


def _become_supervisor(request: Mapping[str, Any], output: int) -> None:
    os.setpgid(0, 0)  # a group of its own, so that signals to the group reach no other process
    _print_to(output)
    os.close(output)
    os.chdir(request["folder"])
    for name, value in request["environment"].items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    if "tempfile" in sys.modules:  # what it found in the server's TMPDIR
        vars(sys.modules["tempfile"])["tempdir"] = None


def _execute(settings: Mapping[str, Any]) -> None:
    """Replace this process by one that imports for itself."""
    for stream in ("link", "requests", "results"):
        os.set_inheritable(settings[stream], True)
    os.execv(sys.executable, [sys.executable, "-P", "-u", sys.argv[0], json.dumps(settings)])


def _print_to(stream: int) -> None:
    for standard in (1, 2):
        os.dup2(stream, standard)


def _send_line(control: socket.socket, word: object) -> None:
    with suppress(OSError):  # the parent has ended
        control.sendall(f"{word}\n".encode())
