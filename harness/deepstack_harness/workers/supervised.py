"""A process under a supervisor of its own (`workers.child`): started, listened to, and ended with its tree.

`run_command` runs a command line so; `workers.worker` calls functions. Nothing that the process starts
outlives it, or this process.

psutil and execnet were considered. psutil finds descendants in snapshots of all processes and loses those
that became daemons between two of them; the subreaper in `child` does not, and has to run where psutil is
not installed. execnet brings a message format and uses stdin and stdout, which belong to the code that runs;
it knows neither limits nor the end of a tree.
"""

import json
import math
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from deepstack_harness.errors import MachineError
from deepstack_harness.workers import child
from deepstack_harness.workers.forked import ForkedSupervisor, start_forked
from deepstack_harness.workers.limits import Limits
from deepstack_harness.workers.outcomes import EndKind, WorkerEnd, end_of
from deepstack_harness.workers.sandbox import remove_folder

TAIL = 6000
"""Bytes of the output that are stored: a stack, and what was printed before it."""
GRACE_S = 10.0
"""Seconds that a supervisor has to end its tree; a process inside a GPU driver may not end at all."""
_WAIT_S = 1.0
"""Seconds to wait for the last report of a supervisor that ended."""
_CHUNK = 2**16
"""Bytes of one read: the capacity of a pipe on Linux."""


@dataclass(frozen=True)
class StartOptions:
    """Options of a process that is started.

    `settings` are those of `child.main` that belong to a command or to a worker. `environment` is added to
    ours, where None removes a variable. `inherited` are streams for the process. `output` is a file for what
    it prints; without it the end of the output is held in memory.
    """

    settings: Mapping[str, Any]
    interpreter: str = sys.executable
    environment: Mapping[str, str | None] | None = None
    folder: Path | None = None
    inherited: Sequence[int] = ()
    output: IO[bytes] | None = None
    stderr: int = subprocess.STDOUT


class Supervised:
    """One process; a single thread listens to it, and any thread may stop it."""

    pid: int | None = None
    """Process id, as soon as the supervisor has reported it."""
    status: int | None = None
    """Exit status, negative for a signal; None until the process has ended."""
    gone = False
    """True when the process and all its descendants have ended."""
    stopped = False
    """True when `stop` was called."""
    sandbox: Mapping[str, Any] | None = None
    """Result of `sandbox.enter`; None before the process has reported it, and without a sandbox."""
    crowd: int | None = None
    """Number of its processes, where these were too many and the supervisor has ended them."""
    refused: OSError | None = None
    """Why the command could not be executed."""
    tail = b""
    """The end of the output."""
    printed = 0
    """Bytes of output so far."""

    def __init__(self, options: StartOptions, limits: Limits) -> None:
        """Start it; raises `MachineError` where the supervisor cannot be started."""
        self._unread = b""
        """The beginning of a line of the supervisor."""
        self._selector = selectors.DefaultSelector()
        self._link, theirs = socket.socketpair()
        self._link.setblocking(False)
        with theirs:
            try:
                self._supervisor = _start(options, limits, theirs.fileno())
            except OSError as error:
                self._link.close()
                self._selector.close()
                why = f"cannot start a process with '{error.filename}': {error.strerror}"
                raise MachineError(why) from None
        # Runs when this object is collected or the interpreter exits, whichever comes first.
        self._finalizer = weakref.finalize(self, _abandon, os.getpid(), self._link, self._supervisor)
        self.register(self._link.fileno(), self._read_link)
        if self._supervisor.stdout is not None:
            os.set_blocking(self._supervisor.stdout.fileno(), False)
            self.register(self._supervisor.stdout.fileno(), self.read_output)

    def register(self, stream: int, handler: Callable[[], None], event: int = selectors.EVENT_READ) -> None:
        """Call `handler` from `listen` whenever `stream` is ready."""
        self._selector.register(stream, event, handler)

    def unregister(self, stream: int) -> None:
        """Forget a stream, if it is known."""
        with suppress(KeyError):
            self._selector.unregister(stream)

    def listen(self, until: float | None) -> bool:
        """Handle what is ready; wait for it until `until` (`time.monotonic()`); False if nothing came."""
        while True:
            left = math.inf if until is None else max(0.0, until - time.monotonic())
            # Python handles a signal that came right before a wait (Ctrl-C) after the wait: keep it short.
            ready = self._selector.select(min(left, _WAIT_S))
            for key, _ in ready:
                key.data()
            if ready or left <= _WAIT_S:
                return bool(ready)

    def read_output(self) -> None:
        """Read what was printed by now, and keep the end of it in `tail`."""
        stream = self._supervisor.stdout
        if stream is None or stream.closed:
            return
        chunk = read_now(stream.fileno())
        if chunk == b"":
            self.unregister(stream.fileno())
        self.printed += len(chunk or b"")
        self.tail = (self.tail + (chunk or b""))[-TAIL:]

    def stop(self) -> None:
        """Let the supervisor end the process and all its descendants, without waiting; from any thread."""
        self.stopped = True
        with suppress(OSError):  # closed already
            self._link.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """End the process and all its descendants, wait until they are gone, and close the streams."""
        if not self._finalizer.alive:
            return
        if not self.gone:
            self.stop()
        until = time.monotonic() + GRACE_S
        while not self.gone and time.monotonic() < until:
            self.listen(until)
        if self.status is None:  # the process has killed or stopped its supervisor
            self._supervisor.kill()
            # The kernel ended the process with its supervisor, and not what shares its process group.
            with suppress(ProcessLookupError, PermissionError):
                if self.pid is not None:
                    os.killpg(self.pid, signal.SIGKILL)
        self._supervisor.wait()
        self.read_output()
        self._finalizer.detach()
        self._selector.close()
        self._link.close()
        if self._supervisor.stdout is not None:
            self._supervisor.stdout.close()

    @property
    def end_status(self) -> int:
        """Exit status of the process that is gone; of its supervisor, where that was killed with it."""
        return self._supervisor.wait() if self.status is None else self.status

    def _read_link(self) -> None:
        chunk = read_now(self._link.fileno())
        if chunk == b"":
            self.gone = True
            self.unregister(self._link.fileno())
        *lines, self._unread = (self._unread + (chunk or b"")).split(b"\n")
        for line in lines:
            self._take_report(json.loads(line))

    def _take_report(self, report: Mapping[str, Any]) -> None:
        self.pid = report.get("pid", self.pid)
        self.status = report.get("status", self.status)
        self.sandbox = report.get("sandbox", self.sandbox)
        self.crowd = report.get("processes", self.crowd)
        if "errno" in report:
            self.refused = OSError(report["errno"], os.strerror(report["errno"]))


def _start(options: StartOptions, limits: Limits, link: int) -> "subprocess.Popen[bytes] | ForkedSupervisor":
    settings = {
        **dict.fromkeys(("command", "requests", "results", "path", "preload", "sandbox", "folder")),
        **options.settings, "parent": os.getpid(), "link": link,
        "limits": {"memory": limits.memory, "open_files": limits.open_files, "file_size": limits.file_size,
                   "processes": limits.processes},
    }  # fmt: skip
    merged: dict[str, str | None] = {**os.environ, **(options.environment or {})}
    environment = {name: value for name, value in merged.items() if value is not None}
    plain = StartOptions(options.settings, environment=options.environment, inherited=options.inherited)
    if options == plain and (forked := start_forked(settings, environment)) is not None:
        return forked
    # A command's supervisor needs no packages, and its environment is the command's: ignore both.
    flags = ["-I", "-S"] if settings["command"] else ["-P", "-u"]
    return subprocess.Popen(
        [options.interpreter, *flags, child.__file__, json.dumps(settings)],
        stdin=subprocess.DEVNULL, stdout=options.output or subprocess.PIPE, stderr=options.stderr,
        cwd=options.folder, env=environment, pass_fds=[link, *options.inherited],
        start_new_session=True,
    )  # fmt: skip


def read_now(stream: int) -> bytes | None:
    """Return what can be read at the moment: None for nothing, b"" for the end of the stream.

    One read empties a pipe, as 64 KiB is what a pipe holds. A loop would follow a process that prints
    without end, and no deadline would be looked at.
    """
    try:
        return os.read(stream, _CHUNK)
    except BlockingIOError:
        return None
    except ConnectionResetError:
        return b""


def _abandon(
    owner: int, link: socket.socket, supervisor: "subprocess.Popen[bytes] | ForkedSupervisor"
) -> None:
    """End a process that nobody closed; not from a fork of its owner."""
    if os.getpid() != owner:
        return
    with suppress(OSError):
        link.shutdown(socket.SHUT_WR)
        link.settimeout(GRACE_S)
        while link.recv(_CHUNK):
            pass
    supervisor.kill()
    supervisor.wait()
    link.close()
    if supervisor.stdout is not None:
        supervisor.stdout.close()


@dataclass(frozen=True)
class Command:
    """A command line, where and with which environment it runs, and what becomes of its output.

    `environment` is added to ours, where None removes a variable. `log` is a file for everything that it
    prints, `output` an open one, such as our own stdout; without them the end of the output is stored.
    `stderr` False drops what it prints there. With `own_temporary` its TMPDIR is a new folder, which is
    removed when everything that it started has ended, also where this process is killed.
    """

    words: Sequence[str]
    folder: Path | None = None
    environment: Mapping[str, str | None] | None = None
    log: Path | None = None
    output: IO[bytes] | None = None
    stderr: bool = True
    own_temporary: bool = False


def run_command(command: Command, limits: Limits) -> WorkerEnd:
    """Run a command until it ends, or until the timeout `limits.call_s`; return its end, with its `status`.

    What it started ends with it. Raises `OSError` where it cannot be executed or its log cannot be written.
    """
    with ExitStack() as opened:
        log = opened.enter_context(command.log.open("wb")) if command.log else None
        settings: dict[str, Any] = {"command": list(command.words)}
        environment = dict(command.environment or {})
        if command.own_temporary:
            settings["folder"] = environment["TMPDIR"] = tempfile.mkdtemp(prefix="night-")
            opened.callback(remove_folder, settings["folder"])  # where its supervisor could not
        options = StartOptions(
            settings, environment=environment, folder=command.folder, output=log or command.output,
            stderr=subprocess.STDOUT if command.stderr else subprocess.DEVNULL,
        )  # fmt: skip
        return _run(Supervised(options, limits), limits, command.log)


def _run(process: Supervised, limits: Limits, log: Path | None = None) -> WorkerEnd:
    deadline = None if limits.call_s is None else time.monotonic() + limits.call_s
    flooded, in_time = False, True
    try:
        while in_time and not flooded and not process.gone:
            in_time = process.listen(deadline)
            flooded = limits.output is not None and process.printed > limits.output
    finally:
        process.close()
    if process.refused is not None:
        raise process.refused
    tail = (process.tail if log is None else _tail(log)).decode(errors="replace")
    if process.crowd is not None:
        return WorkerEnd(EndKind.CROWDED, (process.crowd, limits.processes or 0), output=tail)
    if flooded:
        return WorkerEnd(EndKind.FLOODED, (process.printed,), output=tail)
    if not in_time:
        assert limits.call_s is not None  # nothing else ends the wait
        return WorkerEnd(EndKind.TIMED_OUT, (limits.call_s,), output=tail)
    return end_of(process.end_status, output=tail)


def _tail(log: Path) -> bytes:
    with log.open("rb") as printed:
        printed.seek(max(0, log.stat().st_size - TAIL))
        return printed.read()
