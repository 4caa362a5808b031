"""Save what was compiled, load it in a fresh process, and call it there.

An engine keeps compiled artifacts, and a later process loads them under a cache key.  Where the key
lacks the structure of the arguments, one made without images serves calls with images (vllm 50891).
One process serves every reload of a run.  It imports torch once and compiles nothing; between it and
this one goes JSON (`harness.arms.wire`), and only torch's own artifact lies in a file.
"""

import atexit
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from itertools import count
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from harness.arms import wire
from harness.errors import NotMeasured
from harness.protocols import Decoder, Inputs
from harness.torch_compat import artifact
from harness.torch_compat.modules import take_apart

LIMIT_S = 120.0
"""Seconds for one answer; loading what Inductor compiled takes about 3 on an idle machine."""

_GRACE_S = 5.0
_TAIL = 4000
_KEYS = count()


class ReloadedDecoder:
    """A `harness.protocols.Decoder` that was compiled here, saved, and runs in a fresh process."""

    def __init__(
        self,
        decoder: Decoder,
        inputs: Inputs,
        *,
        backend: str,
        options: Mapping[str, Any],
        limit_s: float = LIMIT_S,
    ) -> None:
        """Compile ahead of time for `inputs`, with their structure and their marked dimensions; save; load.

        `options` are those of torch.compile, `guard_filter_fn` among them; guards that torch cannot
        save are dropped in any case.  Raises `StepUnavailable` where this torch cannot save what
        `backend` compiles, `NotMeasured` where the process dies or gives no answer within
        `limit_s` seconds or the artifact refuses these very `inputs` once reloaded, and what torch
        raises while it compiles or loads.
        """
        self._key = next(_KEYS)
        self._closed = False
        self.limit_s = limit_s
        self._process = fresh_process()  # imports torch while we compile
        forward = decoder.forward  # type: ignore[attr-defined]
        parts = take_apart(decoder)  # type: ignore[arg-type]
        with tempfile.TemporaryDirectory(prefix="harness-") as folder:
            path = Path(folder) / "decoder.artifact"
            arguments = (inputs.hidden, inputs.positions, inputs.payload)
            artifact.save(forward, arguments, path, backend=backend, options=options)
            self._ask(wire.Load(self._key, str(path), parts, torch.get_num_threads()))
        self._rehearse(inputs)

    def __call__(self, hidden: Tensor, positions: Tensor, payload: tuple[Tensor, ...] | None) -> Tensor:
        """Call the artifact; answers (n, h).  What it raises is raised here, under the same class name."""
        grad = torch.is_grad_enabled()
        done = self._ask(wire.Call(self._key, hidden, positions, payload, grad))
        if done.compiled or done.out is None:
            raise NotMeasured(
                f"the fresh process compiled {done.compiled} graphs itself; it should only load"
            )
        return done.out

    def close(self) -> None:
        """Let the process forget the artifact; nothing can be called any more."""
        if self._process.alive and not self._closed:
            with suppress(NotMeasured):  # it has ended since, and so forgotten
                self._ask(wire.Drop(self._key))
        self._closed = True

    def _rehearse(self, inputs: Inputs) -> None:
        # A kept guard may look at something that did not travel: that would be no fault of the artifact.
        try:
            self(inputs.hidden, inputs.positions, inputs.payload)
        except RaisedElsewhere as error:
            self.close()
            raise NotMeasured(
                f"reloaded, the artifact refuses what it was compiled for: {type(error).__name__}: {error}"
            ) from None

    def _ask(self, order: wire.Order) -> wire.Done:
        if self._closed:
            raise NotMeasured("this reloaded decoder is closed")
        answer = self._process.ask(order, self.limit_s)
        if isinstance(answer, wire.Failed):
            raise _as_raised(answer)
        return answer


class FreshProcess:
    """A child that answers orders, one at a time; it leads a session of its own, and ends with us."""

    def __init__(self) -> None:
        """Start it."""
        self._output = tempfile.TemporaryFile()  # noqa: SIM115  # open as long as the child
        self._connection, there = Pipe()
        with there:
            self._child = subprocess.Popen(
                [sys.executable, "-m", "harness.arms.reload_child", str(there.fileno()), str(os.getpid())],
                stdin=subprocess.DEVNULL, stdout=self._output, stderr=subprocess.STDOUT,
                pass_fds=[there.fileno()], start_new_session=True,
            )  # fmt: skip
        atexit.register(self.close)

    @property
    def alive(self) -> bool:
        """Whether it can still be asked."""
        return not self._connection.closed

    @property
    def pid(self) -> int:
        """Its process id, and the id of its process group."""
        return self._child.pid

    def ask(self, order: wire.Order, limit_s: float) -> wire.Answer:
        """Its answer; `NotMeasured`, and the end of the child, where none comes within `limit_s` seconds."""
        if not self.alive:
            raise NotMeasured("the process that had loaded the artifact has ended")
        late = f"gave no answer within {limit_s:g} s"
        try:
            self._limit_waiting(limit_s)
            self._connection.send_bytes(wire.encode(order))
            answer = self._connection.recv_bytes() if self._connection.poll(limit_s) else None
        except BlockingIOError:
            raise self._lost(late) from None
        except (EOFError, OSError):
            raise self._lost(f"ended by itself ({self._status()})") from None
        except BaseException:
            # Interrupted: the answer still to come would be taken for that of the next order.
            self.close()
            raise
        if answer is None:
            raise self._lost(late)
        return wire.decode_answer(answer)

    def close(self) -> None:
        """End it and everything it started."""
        self._connection.close()
        self._kill()
        self._output.close()
        atexit.unregister(self.close)

    def _limit_waiting(self, limit_s: float) -> None:
        # An order that is larger than the socket's buffer waits until the child reads, and an answer may
        # stop halfway: without a limit of the socket's own, a child that hangs there is waited for for ever.
        seconds, fraction = divmod(limit_s, 1)
        timeval = struct.pack("ll", int(seconds), int(fraction * 1e6))
        with socket.socket(fileno=os.dup(self._connection.fileno())) as ours:
            for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
                ours.setsockopt(socket.SOL_SOCKET, option, timeval)

    def _status(self) -> str:
        try:
            status = self._child.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            return "still running"
        return signal.Signals(-status).name if status < 0 else f"status {status}"

    def _kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._child.pid, signal.SIGKILL)
        self._child.wait()

    def _lost(self, how: str) -> NotMeasured:
        # It writes at the offset that we read at: not before it has ended.
        self._kill()
        self._output.seek(0)
        printed = self._output.read().decode(errors="replace")[-_TAIL:].strip()
        self.close()
        return NotMeasured(
            f"the process that had loaded the artifact {how}; it printed: {printed or 'nothing'}"
        )


def fresh_process() -> FreshProcess:
    """The one that serves this run; another one where it has ended."""
    if not _started().alive:
        _started.cache_clear()
    return _started()


@cache
def _started() -> FreshProcess:
    return FreshProcess()


class RaisedElsewhere(Exception):
    """What the loaded artifact raised; `where` is its `file:line` outside torch, if it has one."""

    where = ""


def _as_raised(failed: wire.Failed) -> RaisedElsewhere:
    # On one line: torch spreads the reason of a failed guard over many.
    kind = type(failed.name, (RaisedElsewhere,), {"where": failed.where})
    raised: RaisedElsewhere = kind(textwrap.shorten(failed.message, 400))
    return raised
