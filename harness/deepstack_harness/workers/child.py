"""The child half of a worker: a supervisor, and the process that it watches.

This file needs the standard library of Python 3.11 to 3.14 and nothing else. `workers.supervised` runs it
by its path, also under the interpreter of another environment, with its settings as JSON in `sys.argv[1]`:

    parent    process id of the process that started this one
    link      inherited socket: the supervisor writes what became of the process; end of file means "end it"
    limits    {"memory": bytes, "open_files": count, "file_size": bytes, "processes": count}, each or null
    sandbox   rules for `sandbox.enter`, or null
    folder    a folder to remove when everything has ended, or null
    command   a command line to execute; without it the process serves calls:
    requests  inherited pipe: requests are read from it
    results   inherited pipe: messages are written to it
    path      entries that replace `sys.path`, or null
    preload   a module to import before the first request, or null

Requests and messages are JSON objects, one per line:

    request   {"call": 3, "target": "module:function" or "/file.py:function", "arguments": {..},
               "through": "module:function" that is called with the function and its arguments, or absent}
    message   {"call": 3, "kind": "ready" | "phase" | "fact" | "answered" | "raised", "value": ..}

A function that has a parameter named `channel` receives a `Channel`, to send phases and facts while it runs.

With a setting `door` this process is a fork server (`workers.fork_server`), whose forks go on from here.
"""

import ctypes
import importlib
import json
import os
import resource
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

_PR_SET_PDEATHSIG = 1
"""Option of prctl(2): the signal that this process gets when its parent ends."""
_PR_SET_CHILD_SUBREAPER = 36
"""Option of prctl(2): orphans below this process become its children."""
_PARENT_CHECK_MS = 1000
"""Milliseconds between two looks at the parent, where the signal of its end may be lost."""
_COUNT_MS = 100
"""Milliseconds between two counts of the processes of a worker that may have only so many."""
_RESCAN_MS = 50
"""Milliseconds between two rounds of ending a tree that starts further processes."""


def main(settings: Mapping[str, Any]) -> None:
    """Start the process that does the work, and supervise it; the process itself returns from here too."""
    if "door" in settings:
        settings = _sibling("fork_server").serve(settings)
    if sys.platform == "linux":
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    # What the parent ignores or blocks is inherited: ignored, SIGCHLD would hide how the process ended.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    supervisor = os.getpid()
    # A fork, against our rule "spawn, never fork": that rule is about processes with threads and locks.
    # This one has a single thread; it has loaded a few modules of the standard library, or was forked so.
    process = os.fork()
    if process == 0:
        _become_the_process(supervisor, settings)
    else:
        _close([settings["requests"], settings["results"]])
        Supervisor(process, settings).run()


class Supervisor:
    """A watcher that ends the process and all its descendants when the process or the parent ends.

    Descendants that made themselves daemons are included: this process is the subreaper of its tree, so the
    kernel makes every orphan of the tree its child.
    """

    def __init__(self, process: int, settings: Mapping[str, Any]) -> None:
        self._process = process
        self._parent: int = settings["parent"]
        self._link: int = settings["link"]
        self._folder: str | None = settings["folder"]
        self._most: int | None = settings["limits"]["processes"]
        self._status: int | None = None
        self._ending = False
        self._signals, theirs = os.pipe()
        for end in (self._signals, theirs):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(theirs, warn_on_full_buffer=False)
        # Python writes the number of a signal into the pipe only if the signal has a handler.
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, lambda *_: None)
        self._poll = select.poll()
        self._poll.register(self._signals, select.POLLIN)
        self._poll.register(self._link, select.POLLIN)

    def run(self) -> None:
        """Wait for either end, end what is left of the tree, and write the exit status to the link."""
        _write_line(self._link, {"pid": self._process})
        self._reap()
        while self._status is None and not self._ending:
            self._wait(_PARENT_CHECK_MS if self._most is None else _COUNT_MS)
            if self._most is not None and (count := len(descendants(self._most))) > self._most:
                _write_line(self._link, {"processes": count})
                self._ending = True
            if os.getppid() != self._parent:  # a fork of the parent may hold its end of the link open
                self._ending = True
            self._reap()
        self._poll.unregister(self._link)
        self._end_tree()
        if self._folder is not None:
            _sibling("sandbox").remove_folder(self._folder)
        # As in subprocess: a negative number is a signal.
        _write_line(self._link, {"status": self._status})
        os._exit(0)  # the parent waits for our end: leave out what the interpreter tidies up

    def _wait(self, milliseconds: int) -> None:
        for ready, _ in self._poll.poll(milliseconds):
            numbers = set() if ready == self._link else set(os.read(self._signals, 4096))
            if numbers != {signal.SIGCHLD}:  # the link, or SIGTERM, SIGHUP, SIGINT
                self._ending = True

    def _end_tree(self) -> None:
        # The orphans of a killed child become our children, so only direct children need to be killed.
        # The kernel may leave out entries of the list while processes end, hence the loop with a timeout.
        while self._reap():
            for child in child_processes():
                _kill_group(child)
            if sys.platform != "linux" and self._status is None:  # no subreaper, no /proc
                os.killpg(self._process, signal.SIGKILL)
            self._wait(_RESCAN_MS)

    def _reap(self) -> bool:
        """Collect children that have ended; return whether any child is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self._process:
                self._status = os.waitstatus_to_exitcode(status)


def child_processes() -> list[int]:
    """Return the process ids of this process's children."""
    try:
        return _listed_children(os.getpid())
    except OSError:
        return child_processes_by_stat()


def descendants(most: int) -> list[int]:
    """Return the process ids of this process's descendants, a few more than `most` where there are more."""
    pids = child_processes()
    for pid in pids:  # it grows meanwhile
        if len(pids) > most:
            break
        try:
            # Only the first thread of each process is examined: torch's threads start no processes.
            pids += _listed_children(pid)
        except OSError:
            continue  # it has ended
    return pids


def _listed_children(pid: int) -> list[int]:
    with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as listed:
        return [int(word) for word in listed.read().split()]


def child_processes_by_stat() -> list[int]:
    """Return the same on a kernel that was built without CONFIG_PROC_CHILDREN."""
    own, pids = str(os.getpid()), []
    for name in os.listdir("/proc") if os.path.isdir("/proc") else ():
        try:
            with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as stat:
                # The second field is a name in parentheses, which may contain spaces and parentheses.
                parent = stat.read().rpartition(")")[2].split()[1] if name.isdigit() else ""
        except OSError:
            continue  # it has ended
        if parent == own:
            pids.append(int(name))
    return pids


class Channel:
    """The way from a called function to the process that called it."""

    def __init__(self, results: int) -> None:
        self._results = results
        self._lock = threading.Lock()
        self.owner = os.getpid()
        self.call = 0

    def phase(self, text: str) -> None:
        """Announce what is done from now on, such as "method get, step 3"; the last one names an end."""
        self.send("phase", text)

    def fact(self, value: object) -> None:
        """Send a JSON value; the parent stores it, whatever happens to this process afterwards."""
        self.send("fact", value)

    def send(self, kind: str, value: object) -> None:
        """Write one message. A fork of the worker writes nothing: its messages would be taken for ours."""
        if os.getpid() == self.owner:
            line = _line({"call": self.call, "kind": kind, "value": value})
            with self._lock:
                _write(self._results, line)


def _become_the_process(supervisor: int, settings: Mapping[str, Any]) -> None:
    # A session of its own, apart from the supervisor's: `os.killpg(0, ..)` does not reach the supervisor.
    os.setsid()
    if sys.platform == "linux":
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != supervisor:  # it ended before the request to be ended with it was in force
        os._exit(1)
    _limit(settings["limits"])
    if settings["sandbox"]:  # before any module of the code under test, and before torch starts threads
        report = _sibling("sandbox").enter(settings["sandbox"])
        _write_line(settings["link"], {"sandbox": report})
    if settings["command"]:
        _execute(settings["command"], settings["link"])
    _close([settings["link"]])
    _serve(settings)


def _sibling(name: str) -> Any:  # noqa: ANN401  # a module
    """Load another file of this folder, which no `sys.path` leads to."""
    from importlib import util

    path = os.path.join(os.path.dirname(__file__), f"{name}.py")
    spec = util.spec_from_file_location(f"worker_{name}", path)
    assert spec is not None  # the path ends with .py
    assert spec.loader is not None
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _limit(limits: Mapping[str, int | None]) -> None:
    kinds = {
        resource.RLIMIT_CORE: 0,  # a core file of a process with torch has gigabytes
        resource.RLIMIT_DATA: limits["memory"],
        resource.RLIMIT_NOFILE: limits["open_files"],
        resource.RLIMIT_FSIZE: limits["file_size"],
    }
    for kind, limit in kinds.items():
        if limit is not None:
            allowed = resource.getrlimit(kind)[1]  # a lower limit of this process itself stays
            lower = limit if allowed == resource.RLIM_INFINITY else min(limit, allowed)
            resource.setrlimit(kind, (lower, lower))


def _execute(command: list[str], link: int) -> None:
    # Python ignores these two, and a program inherits what is ignored.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    os.set_inheritable(link, False)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        _write_line(link, {"errno": error.errno})
        os._exit(127)


def _serve(settings: Mapping[str, Any]) -> None:
    requests, results = settings["requests"], settings["results"]
    for end in (requests, results):
        os.set_inheritable(end, False)
    channel = Channel(results)
    del sys.argv[1:]
    if settings["path"] is not None:
        sys.path[:] = settings["path"]
    if settings["preload"]:
        channel.phase(f"the import of {settings['preload']}")
        importlib.import_module(settings["preload"])
    channel.send("ready", None)
    # Not closed after the loop: code under test may have closed it, and the exit status must be reported.
    for line in os.fdopen(requests, "rb", closefd=False):
        request = json.loads(line)
        channel.call = request["call"]
        _call_function(channel, request)
        if os.getpid() != channel.owner:  # the function forked: this copy must not take requests
            os._exit(0)


def _call_function(channel: Channel, request: Mapping[str, Any]) -> None:
    try:
        function = _find(channel, request["target"])
        arguments = request["arguments"]
        # Not inspect.signature: importing inspect takes longer than all the rest of this file.
        code = getattr(function, "__code__", None)
        if code is not None and "channel" in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]:
            arguments = {**arguments, "channel": channel}
        through = request.get("through")
        result = _find(channel, through)(function, arguments) if through else function(**arguments)
        channel.send("answered", result)
    except Exception as error:  # noqa: BLE001  # an exception of the called function is a result
        channel.send("raised", _describe(error))


def _find(channel: Channel, target: str) -> Callable[..., object]:
    place, _, name = target.rpartition(":")
    module = place
    if place.endswith(".py"):
        module = f"worker_target:{place}"
    if module not in sys.modules:
        channel.phase(f"the import of {place}")
        _import(module, place)
        channel.phase("")
    return getattr(sys.modules[module], name)  # type: ignore[no-any-return]


def _import(module: str, place: str) -> None:
    if module == place:
        importlib.import_module(module)
        return
    from importlib import util

    spec = util.spec_from_file_location(module, place)
    assert spec is not None  # the name ends with .py
    assert spec.loader is not None
    sys.modules[module] = loaded = util.module_from_spec(spec)  # before: dataclasses look their module up
    try:
        spec.loader.exec_module(loaded)
    except BaseException:
        del sys.modules[module]
        raise


def _describe(error: Exception) -> dict[str, object]:
    """Return an exception as JSON: `where` has file:line of each frame, the innermost last.

    `exit_code` is there for an error of deepstack_harness.errors, which this file must not import.
    """
    kind, places, frame = type(error), [], error.__traceback__
    while frame is not None:
        if frame.tb_frame.f_code.co_filename != __file__:
            places.append(f"{frame.tb_frame.f_code.co_filename}:{frame.tb_lineno}")
        frame = frame.tb_next
    ours = any((base.__module__, base.__name__) == _OUR_ERROR for base in kind.__mro__)
    return {
        "type": kind.__name__,
        "module": kind.__module__,
        "message": _text(error),
        "where": places,
        "exit_code": int(error.exit_code) if ours else None,  # type: ignore[attr-defined]
    }


_OUR_ERROR = ("deepstack_harness.errors", "HarnessError")


def _text(error: Exception) -> str:
    try:
        return str(error)
    except Exception as second:  # noqa: BLE001  # the method is code under test too
        return f"(its text cannot be had: {type(second).__name__})"


def _line(message: object) -> bytes:
    return json.dumps(message).encode() + b"\n"


def _write(stream: int, line: bytes) -> None:
    left = memoryview(line)
    while left:
        left = left[os.write(stream, left) :]


def _write_line(link: int, message: object) -> None:
    try:
        _write(link, _line(message))
    except OSError:  # the parent has ended
        return


def _kill_group(pid: int) -> None:
    """Kill a child and all that share its group: the kernel does so at once, whatever they fork meanwhile."""
    try:
        os.kill(pid, signal.SIGKILL)
        group = os.getpgid(pid)
        if group != os.getpgrp():
            os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return


def _close(streams: Iterable[int | None]) -> None:
    for stream in streams:
        if stream is not None:
            os.close(stream)


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl {option}")


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
