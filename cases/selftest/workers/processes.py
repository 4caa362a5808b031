"""Evidence that processes which a test started are really gone; nothing here sleeps or polls."""

import os
import select
import signal
import stat
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

_TIMEOUT_S = 120


def has_ended(pid: int) -> bool:
    """Return True when a process ends, zombies included; kill it and return False if it goes on."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        if select.select([process], [], [], _TIMEOUT_S)[0]:
            return True
        os.kill(pid, signal.SIGKILL)
        return False
    finally:
        os.close(process)


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def open_streams() -> list[Path]:
    return sorted(Path("/proc/self/fd").iterdir())


def interrupt_after(wait: Callable[[], object]) -> None:
    """Interrupt the main thread, as Ctrl-C does, when `wait` returns; for a thread."""
    wait()
    main = threading.main_thread().ident
    assert main is not None
    signal.pthread_kill(main, signal.SIGINT)


class Witness:
    """A FIFO that processes open for writing and pass on to those that they fork.

    Its end of file shows that none of them is left, wherever in the tree of processes it had moved to.
    """

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "witness")
        os.mkfifo(self.path)
        self._stream = os.fdopen(os.open(self.path, os.O_RDONLY | os.O_NONBLOCK), "rb", buffering=0)
        self._read = b""

    def line(self) -> str:
        """Wait for a line that one of them writes."""
        while b"\n" not in self._read:
            assert self._more(), "no process wrote a line"
        line, _, self._read = self._read.partition(b"\n")
        return line.decode()

    def is_closed(self) -> bool:
        """Wait until all of them have ended; False if one goes on."""
        while self._more():
            pass
        return self._closed

    def close(self) -> None:
        self._stream.close()

    _closed = False

    def _more(self) -> bool:
        if self._closed or not select.select([self._stream], [], [], _TIMEOUT_S)[0]:
            return False
        chunk = self._stream.read(4096)
        self._closed = chunk == b""
        self._read += chunk or b""
        return not self._closed


def reachable_folder() -> "tempfile.TemporaryDirectory[str]":
    """Make a folder where every user may enter all folders above it; skip the case where there is none.

    pytest's own folder is closed to other users, and so may be a checkout in which TMPDIR lies.
    """
    for top in (Path(tempfile.gettempdir()), Path("/tmp")):
        if all(folder.stat().st_mode & stat.S_IXOTH for folder in (top, *top.parents)):
            return tempfile.TemporaryDirectory(dir=top)
    pytest.skip("no folder for temporary files is open to other users")


def count_three_gpus() -> int:
    """Count as a torch that sees three GPUs."""
    return 3
