"""The process of a group as its parent sees it: asked, listened to, and ended with all that it started."""

import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace

from deepstack_harness.contract.case import PlannedCase
from deepstack_harness.results.case_result import CaseResult, lost_result
from deepstack_harness.results.records import CaseEnding
from deepstack_harness.runs.messages import Finished, Ready, Reply, decode_reply, encode

_CHUNK = 2**16
_TAIL = 4000
"""Bytes of what a case printed that are kept, however much it was."""
_GRACE_S = 5.0


@dataclass(frozen=True)
class Limits:
    """Seconds for one case and for starting a process, bytes of private memory (0: no limit)."""

    case_s: float = 300.0
    start_s: float = 300.0
    memory: int = 8 * 2**30


class Lost(Exception):
    """The process will not answer any more, and how it ended."""

    def __init__(self, ending: CaseEnding, why: str) -> None:
        """`why` goes on after the ending."""
        super().__init__(why)
        self.ending = ending


@dataclass
class GroupProcess:
    """One child, `deepstack_harness.runs.worker`, in a session of its own; `environment` is added to ours."""

    limits: Limits
    environment: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Start it; nothing is waited for yet."""
        self._answers, theirs = os.pipe()
        command = [sys.executable, "-m", "deepstack_harness.runs.worker"]
        command += [str(theirs), str(self.limits.memory), str(os.getpid())]
        self._child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            pass_fds=[theirs], start_new_session=True, env={**os.environ, **_ONE_THREAD, **self.environment},
        )  # fmt: skip
        os.close(theirs)
        assert self._child.stdout is not None  # it was asked for
        self._printed = self._child.stdout.fileno()
        self._tail, self._line = b"", b""
        self.started, self._ended = False, False
        self._selector = selectors.DefaultSelector()
        for stream in (self._answers, self._printed):
            self._selector.register(stream, selectors.EVENT_READ)

    @property
    def pid(self) -> int:
        """Its process id, and its process group's."""
        return self._child.pid

    def play(self, planned: PlannedCase) -> tuple[CaseResult, bool]:
        """Let it play a case; answers what came of it, and whether the process can go on.

        Where it crashes, hangs or leaves, that is what came of it.
        """
        started = time.monotonic()
        try:
            self._start()
            started, self._tail = time.monotonic(), b""
            self._ask(planned)
            reply = self._reply(self.limits.case_s)
            assert isinstance(reply, Finished)  # nothing else is sent after Ready
        except Lost as how:
            seconds = time.monotonic() - started
            self.end()
            return lost_result(planned, how.ending, str(how), self._output(), seconds), False
        return self._with_output(reply.result, reply.fit), reply.fit

    def end(self) -> None:
        """End it and everything it started; may be called more than once, and from another thread."""
        if not self._ended:  # later its number may be another process's
            self._ended = True
            with suppress(ProcessLookupError):
                os.killpg(self._child.pid, signal.SIGKILL)
        self._child.wait()

    def close(self) -> None:
        """End it, and give back its pipes."""
        self.end()
        self._selector.close()
        os.close(self._answers)
        for stream in (self._child.stdin, self._child.stdout):
            assert stream is not None  # both were asked for
            with suppress(OSError):  # a case that it never read
                stream.close()

    def _start(self) -> None:
        if not self.started:
            assert isinstance(self._reply(self.limits.start_s), Ready)
            self.started = True

    def _with_output(self, result: CaseResult, fit: bool) -> CaseResult:
        if fit or result.case.output:
            return result
        return replace(result, case=replace(result.case, output=self._output()))

    def _ask(self, planned: PlannedCase) -> None:
        assert self._child.stdin is not None  # it was asked for
        with suppress(OSError):  # it has ended: its answer will be missing
            self._child.stdin.write(encode(planned))
            self._child.stdin.flush()

    def _reply(self, limit_s: float) -> Reply:
        deadline = time.monotonic() + limit_s
        while b"\n" not in self._line:
            ready = self._selector.select(max(0.0, deadline - time.monotonic()))
            if time.monotonic() >= deadline:
                raise Lost(CaseEnding.TIMED_OUT, f"no answer within {limit_s:g} s")
            self._listen({key.fd for key, _ in ready})
        line, _, self._line = self._line.partition(b"\n")
        return decode_reply(line)

    def _listen(self, ready: set[int]) -> None:
        if self._printed in ready:
            self._keep_printed()
        if self._answers in ready:
            chunk = os.read(self._answers, _CHUNK)
            self._line += chunk
            if not chunk:
                raise Lost(CaseEnding.CRASHED, self._status())

    def _keep_printed(self) -> None:
        """Read what was printed, and keep the end of it."""
        chunk = os.read(self._printed, _CHUNK)
        self._tail = (self._tail + chunk)[-_TAIL:]
        if not chunk:
            self._selector.unregister(self._printed)

    def _status(self) -> str:
        """How it ended by itself; one that only closed its pipe is ended."""
        with suppress(subprocess.TimeoutExpired):
            status = self._child.wait(_GRACE_S)
            return f"ended by {signal.Signals(-status).name}" if status < 0 else f"exited with {status}"
        return "stopped answering"

    def _output(self) -> str:
        """The end of what was printed, with what the pipe still holds."""
        while self._printed in {key.fd for key, _ in self._selector.select(0)}:
            self._keep_printed()
        return self._tail.decode(errors="replace")


_ONE_THREAD = {"OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1", "PYTHONUNBUFFERED": "1"}
"""Compiling in the process itself also leaves nothing behind when it is killed."""
