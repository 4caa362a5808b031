"""Functions that a worker has to survive; with only the standard library, as `workers.child`."""

import ctypes
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NoReturn

from deepstack_harness.errors import MachineError, UsageError
from deepstack_harness.workers.child import Channel
from deepstack_harness.workers.limits import Limits
from deepstack_harness.workers.outcomes import value_of
from deepstack_harness.workers.worker import Worker

COUNT = 0
FOREVER = 600
_WITNESSES: list[int] = []


def double(number: float) -> float:
    return 2 * number


def echo(value: object) -> object:
    return value


def count() -> int:
    global COUNT  # noqa: PLW0603
    COUNT += 1
    return COUNT


def loaded_modules() -> list[str]:
    return sorted(sys.modules)


def surroundings(names: list[str]) -> dict[str, Any]:
    return {
        "folder": str(Path.cwd()),
        "environment": {name: os.environ.get(name) for name in names},
        "stdin": sys.stdin.read(),
        "arguments": sys.argv[1:],
        "open": sorted([0, 1, 2, *_streams()]),
        "inherited by programs": [stream for stream in (0, 1, 2, *_streams()) if os.get_inheritable(stream)],
        "group": os.getpgid(0),
        "pid": os.getpid(),
        "interpreter": sys.executable,
    }


def blocked_signals_and_status_of_a_child() -> list[object]:
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    return [sorted(blocked), subprocess.run(["sh", "-c", "exit 3"], check=False).returncode]


# Exceptions


def refuse(why: str) -> None:
    raise ValueError(why)


class NotFetched(MachineError):
    """An error of ours that is no class of `deepstack_harness.errors`."""


def refuse_as_we_do(*, known: bool) -> None:
    raise UsageError("unknown name 'x'") if known else NotFetched("no network")


class Unspeakable(Exception):
    def __str__(self) -> NoReturn:
        raise RuntimeError


def raise_unspeakable() -> None:
    raise Unspeakable


def return_a_lock() -> object:
    return threading.Lock()


# Ends


def report_and(then: str, channel: Channel) -> None:
    """Report, print without a line end, and end in some way."""
    channel.phase("set-up")
    channel.fact({"step": 1})
    channel.fact({"step": 2})
    channel.phase("method get, step 3")
    sys.stdout.write("last words")
    sys.stderr.write(", and an error")
    ENDS[then]()


def hang() -> None:
    time.sleep(FOREVER)


def stop_itself() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def crash() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def read_address_zero() -> None:
    ctypes.string_at(0)


def kill_own_group() -> None:
    os.killpg(0, signal.SIGKILL)


def kill_supervisor() -> None:
    os.kill(os.getppid(), signal.SIGKILL)
    hang()


def terminate_supervisor() -> None:
    os.kill(os.getppid(), signal.SIGTERM)
    hang()


def stop_supervisor() -> None:
    os.kill(os.getppid(), signal.SIGSTOP)
    hang()


def stop_supervisor_and_print() -> None:
    os.kill(os.getppid(), signal.SIGSTOP)
    flood_always()


def interrupt_itself() -> None:
    raise KeyboardInterrupt


def end_by_real_time_signal() -> None:
    os.kill(os.getpid(), 40)


def hang_in_a_thread() -> None:
    threading.Thread(target=hang).start()
    sys.exit(5)


ENDS = {
    "hang": hang,
    "stop": stop_itself,
    "crash": crash,
    "really crash": read_address_zero,
    "kill own group": kill_own_group,
    "kill supervisor": kill_supervisor,
    "terminate supervisor": terminate_supervisor,
    "stop supervisor": stop_supervisor,
    "stop supervisor and print": stop_supervisor_and_print,
    "interrupt": interrupt_itself,
    "real-time signal": end_by_real_time_signal,
    "exit 0": lambda: sys.exit(0),
    "exit 7": lambda: sys.exit(7),
    "os._exit 0": lambda: os._exit(0),
    "os._exit 3": lambda: os._exit(3),
    "exit with a thread": hang_in_a_thread,
}


# In place of any target


def hang_always(**_: object) -> None:
    hang()


def crash_always(**_: object) -> None:
    crash()


def flood_always(**_: object) -> None:
    while True:
        sys.stdout.write("x" * 2**20)


def refuse_always(**_: object) -> None:
    raise ValueError("because")


def refuse_as_a_user(**_: object) -> None:
    refuse_as_we_do(known=True)


ALWAYS = {
    "hang_always": "no answer within 0.5 s",
    "crash_always": "ended by SIGSEGV",
    "flood_always": "printed ",
    "refuse_always": "ValueError: because",
}
"""What a caller with a limit of half a second has to report of each."""


# Memory, files, output


def eat(megabytes: int) -> int:
    return len(bytearray(megabytes * 2**20)) // 2**20


def eat_in_crumbs() -> None:
    """Keep small objects until there is no memory for another one, not even in the handler."""
    kept: Any = None
    while True:
        kept = (kept, b"x" * 100)


def open_files(count: int) -> int:
    with ExitStack() as stack:
        for _ in range(count):
            stack.enter_context(Path(os.devnull).open("rb"))
    return count


def open_files_of_a_worker(limit: int) -> object:
    with Worker(Limits(open_files=limit)) as worker:
        inner = worker.call(f"{__name__}:open_files_limit")
    return value_of(inner, "asking")


def open_files_limit() -> list[int]:
    return list(resource.getrlimit(resource.RLIMIT_NOFILE))


def core_limit() -> list[int]:
    return list(resource.getrlimit(resource.RLIMIT_CORE))


def write_file(path: str, size: int) -> None:
    Path(path).write_bytes(bytes(size))


def print_bytes(size: int, word: str = "x") -> int:
    for _ in range(size // 2**16):
        sys.stdout.write(word * 2**16)
    sys.stdout.write(word * (size % 2**16))
    return size


def print_in_steps(steps: int, size: int, channel: Channel) -> None:
    for step in range(steps):
        print_bytes(size)
        channel.phase(f"step {step}")


def send_facts_until_ended(channel: Channel) -> None:
    while True:
        channel.fact("x" * 2**16)


def send_facts_and_crash(count: int, channel: Channel) -> None:
    for number in range(count):
        channel.fact([number, "x" * 1000])
    print_bytes(2**15, "y")
    crash()


def announce(phases: int, channel: Channel) -> None:
    """Announce phases and hang in the last one."""
    for number in range(phases):
        channel.phase(f"phase {number}")
    hang()


# The pipe of results


def write_to_every_stream(text: str) -> None:
    for stream in _streams():
        try:
            os.write(stream, text.encode())
        except OSError:
            continue
    hang()


def close_every_stream(then: str) -> None:
    for stream in _streams():
        os.close(stream)
    ENDS[then]()


def _streams() -> list[int]:
    return [
        int(path.name) for path in Path("/proc/self/fd").iterdir() if int(path.name) > 2 and path.exists()
    ]


def fork_and_answer() -> str:
    """Return twice, first from the fork."""
    fork = os.fork()
    if fork == 0:
        return "the fork"
    os.waitpid(fork, 0)
    return "the worker"


def fork_and_raise() -> str:
    fork = os.fork()
    if fork == 0:
        raise ValueError("the fork")
    os.waitpid(fork, 0)
    return "the worker"


def leave_a_thread_that_reports(channel: Channel) -> None:
    old, let_go = Channel(channel._results), threading.Event()
    old.call = channel.call

    def report() -> None:
        let_go.wait()
        old.fact("late")
        old.phase("late")

    _LATE.append((threading.Thread(target=report), let_go))
    _LATE[-1][0].start()


def let_the_thread_report() -> str:
    thread, let_go = _LATE.pop()
    let_go.set()
    thread.join()
    return "answer"


_LATE: list[tuple[threading.Thread, threading.Event]] = []


# Trees of processes: each holds the witness open


def _join(witness: str) -> None:
    _WITNESSES.append(os.open(witness, os.O_WRONLY))


def _tell(line: object) -> None:
    os.write(_WITNESSES[-1], f"{line}\n".encode())


def tell_and_hang(witness: str) -> None:
    _join(witness)
    _tell(os.getpid())
    hang()


def start_daemon(witness: str, then: str = "") -> None:
    """Start a daemon by the book: two forks and a session of its own; it ignores what can be ignored."""
    _join(witness)
    output, tell = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
                signal.signal(number, signal.SIG_IGN)
            _tell(os.getpid())
            os.write(tell, b"up")
            hang()
        os._exit(0)
    os.wait()
    os.read(output, 2)
    if then:
        ENDS[then]()


def start_daemon_and_hang(witness: str, channel: Channel) -> None:
    start_daemon(witness)
    channel.fact("a daemon runs")
    hang()


def start_nested_reaper(witness: str) -> None:
    """Start a process that collects orphans itself, and a daemon under it."""
    _join(witness)
    if os.fork() == 0:
        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
        start_daemon(witness, "hang")
    hang()


def start_subprocess(witness: str) -> None:
    """Start a program that shares the process group, and hang."""
    _join(witness)
    command = [sys.executable, "-c", f"import time; time.sleep({FOREVER})"]
    subprocess.Popen(command, pass_fds=_WITNESSES)
    _tell("started")
    hang()


def start_fork_bomb(witness: str, width: int) -> None:
    """Start processes that replace each other as fast as they can: each forks its successor and ends."""
    _join(witness)
    _tell("started")
    for _ in range(width):
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)
            while True:
                if os.fork():
                    os._exit(0)
    hang()


def bind_shared(buffer: dict[str, Any]) -> dict[str, Any]:
    """Misbehave in place of `play.work:bind_shared`, as in the buffer's name; a path is a witness."""
    name = buffer["name"]
    if name in ALWAYS:
        globals()[name]()
    if name.startswith("/"):
        tell_and_hang(name)
    return {"buffer": buffer, "torch": ""}


class Halfway:
    """Has the constructor of a buffer, and half of its methods."""

    def __init__(self, capacity: int, hidden: int, levels: int, *, dtype: object, device: object) -> None:
        self.made = (capacity, hidden, levels, dtype, device)

    def get(self, tokens: int) -> None:
        """Return nothing."""

    def set(self, payload: object) -> None:
        """Keep nothing."""


# Limits, and the advice about them


def allocate() -> list[bytearray]:
    return [bytearray(2**26) for _ in range(64)]


def start_processes() -> None:
    started = [subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) for _ in range(6)]
    started[0].wait()


def write_much() -> None:
    with tempfile.TemporaryFile() as file:
        file.write(bytes(2**22))


def open_many() -> None:
    with ExitStack() as stack:
        for _ in range(100):
            stack.enter_context(Path("/dev/null").open())


def attempted(name: str) -> str:
    """Return the message of the error that a method raised."""
    from deepstack_harness.play.attempt import attempt

    tried = attempt("get", globals()[name])
    assert tried.raised is not None
    return tried.raised.message


# In place of the work of any caller


def start_tree(**_: object) -> None:
    """Hang, with a daemon; both hold the witness of a test open."""
    _join(os.environ["WITNESS"])
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            _tell("worker and daemon")
            hang()
        os._exit(0)
    hang()
