"""A rank as its parent sees it: a child in a session of its own, asked and answered over a socket."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import wait

from deepstack_harness.play.ranks.messages import Order, Reply, decode_reply, encode

_GRACE_S = 5.0
_TAIL = 6000
"""Characters: a stack and what was printed before it."""


class RankProcess:
    """One child, `deepstack_harness.play.ranks.worker`; it ends when this process does."""

    def __init__(self, rank: int) -> None:
        """Start it; its first reply says that it is ready."""
        self.rank = rank
        self._printed = tempfile.TemporaryFile()  # noqa: SIM115  # open as long as the child
        self._case_starts = 0
        self.connection, there = Pipe()
        with there:
            self._child = subprocess.Popen(
                [sys.executable, "-m", "deepstack_harness.play.ranks.worker", str(rank), str(there.fileno())],
                stdin=subprocess.DEVNULL, stdout=self._printed, stderr=subprocess.STDOUT,
                pass_fds=[there.fileno()], start_new_session=True, env=_environment(),
            )  # fmt: skip

    @property
    def pid(self) -> int:
        """Its process id, and the id of its process group."""
        return self._child.pid

    def send(self, order: Order) -> None:
        """Let it play a case; what it prints from now on belongs to that case."""
        self._case_starts = os.fstat(self._printed.fileno()).st_size
        with suppress(OSError):  # it has died: its reply will be missing
            self.connection.send_bytes(encode(order))

    def status(self) -> str:
        """How it ended by itself."""
        try:
            status = self._child.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            return "hung up and went on"
        return f"ended by {signal.Signals(-status).name}" if status < 0 else f"exited with {status}"

    def end(self) -> str:
        """End it and everything it started; answers the end of what it printed in its last case."""
        if self._printed.closed:
            return ""
        self.connection.close()
        with suppress(ProcessLookupError):
            os.killpg(self._child.pid, signal.SIGKILL)
        self._child.wait()
        # It writes at the offset that we read at: not before it has ended.
        with self._printed:
            self._printed.seek(self._case_starts)
            return self._printed.read().decode(errors="replace")[-_TAIL:].strip()


class RanksLost(Exception):
    """Ranks that will not reply any more, and in which way."""

    def __init__(self, ranks: Sequence[int], how: str) -> None:
        """`how` goes on after the numbers of the ranks."""
        super().__init__(how)
        self.ranks = ranks


def replies(processes: Sequence[RankProcess], limit_s: float) -> list[Reply]:
    """One reply of each; raises `RanksLost` when one ended, or some gave none within `limit_s` seconds."""
    deadline = time.monotonic() + limit_s
    waiting = {process.connection: process for process in processes}
    found: dict[int, Reply] = {}
    while waiting:
        ready = wait(list(waiting), max(0.0, deadline - time.monotonic()))
        if not ready:
            silent = [process.rank for process in waiting.values()]
            raise RanksLost(silent, f"gave no answer within {limit_s:g} s")
        for connection in ready:
            process = waiting.pop(connection)  # type: ignore[call-overload]
            found[process.rank] = _reply(process)
    return [found[process.rank] for process in processes]


def _reply(process: RankProcess) -> Reply:
    try:
        return decode_reply(process.connection.recv_bytes())
    except (EOFError, OSError):
        raise RanksLost([process.rank], process.status()) from None


def _environment() -> dict[str, str]:
    """One thread each; ranks of one machine meet on its loopback device, whatever its name resolves to."""
    ours = {"OMP_NUM_THREADS": "1"}
    if sys.platform == "linux":
        ours |= {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
    return {**os.environ, **ours}
