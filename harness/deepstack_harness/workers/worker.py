"""A child process that is called like a function, with timeouts, limits and a sandbox.

A call is a request through one pipe, and phases, facts and the result come back through another: JSON
objects, one per line, as `workers.child` documents them. `Timeouts` are those of one call.
"""

import json
import logging
import math
import os
import selectors
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Any, Self

import msgspec

from deepstack_harness.errors import MachineError, names_out_of_memory
from deepstack_harness.workers.limits import MIB, ONE_THREAD, Limits
from deepstack_harness.workers.outcomes import (
    Answered,
    CallResult,
    EndKind,
    RaisedInWorker,
    WorkerEnd,
    end_of,
)
from deepstack_harness.workers.profiles import (
    InForce,
    SandboxProfile,
    confine,
    is_switched_off,
    parts_in_force,
)
from deepstack_harness.workers.remote import CALL_TYPED, Remote, Result, converted
from deepstack_harness.workers.supervised import GRACE_S, StartOptions, Supervised, read_now


class Closing:
    """Context manager that calls `close` at its end."""

    def __enter__(self) -> Self:
        """Return this object, to be closed."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        self.close()

    def close(self) -> None:
        """Release what it holds."""
        raise NotImplementedError


class Timeouts:
    """The running timeouts of a call: one for all of it, one for its next phase or fact."""

    def __init__(self, call_s: float | None, step_s: float | None = None) -> None:
        """Start both, in seconds; None is no timeout."""
        self._call_s, self._step_s = call_s, step_s
        self._deadline = _deadline_in(call_s)
        self._step_deadline = _deadline_in(step_s)

    @property
    def limit_s(self) -> float | None:
        """Seconds of the earlier deadline."""
        return self._step_s if self.is_of_a_step else self._call_s

    @property
    def is_of_a_step(self) -> bool:
        """Return whether the deadline of the step is the earlier one."""
        return self._step_deadline < self._deadline

    @property
    def is_over(self) -> bool:
        """True after the deadline of the call."""
        return time.monotonic() >= self._deadline

    def earlier(self, other: float | None) -> float | None:
        """Return the earliest deadline; None where there is none."""
        earliest = min(self._deadline, self._step_deadline, math.inf if other is None else other)
        return None if earliest == math.inf else earliest

    def renew(self) -> bool:
        """Begin the next step; return False where steps have no limit."""
        self._step_deadline = _deadline_in(self._step_s)
        return self._step_s is not None


def _deadline_in(seconds: float | None) -> float:
    return math.inf if seconds is None else time.monotonic() + seconds


_KINDS = frozenset({"ready", "phase", "fact", "answered", "raised"})


@dataclass(frozen=True)
class Message:
    """A message of a worker: `call` is the number of the call that it belongs to, 0 for the start."""

    call: int
    kind: str
    value: Any


class NotAMessage(Exception):
    """Something else came out of the message pipe."""


class MessagePipes:
    """The pipe for requests and the pipe for messages; the child inherits the other ends."""

    def __init__(self) -> None:
        """Open both."""
        self.for_requests, self._requests = os.pipe()
        self._results, self.for_results = os.pipe()
        self.received = 0
        """Bytes that came since the last request."""
        self.closes_at: float | None = None
        """Set at the end of the messages: time (`time.monotonic()`) to give up a child that does not end."""
        self._outbox, self._inbox, self._searched = memoryview(b""), bytearray(), 0
        self._process: Supervised | None = None
        self._closed = False

    def attach(self, process: Supervised) -> None:
        """Be served by the loop of `process`, which has inherited the other ends."""
        self._process = process
        for stream in (self._requests, self._results):
            os.set_blocking(stream, False)
        process.register(self._results, self._read)
        self.close_theirs()

    def close_theirs(self) -> None:
        """Close the ends for the child: only with them closed here, its end is the end of the stream."""
        os.close(self.for_requests)
        os.close(self.for_results)

    def send(self, request: Mapping[str, Any]) -> None:
        """Send a request; what the pipe does not take now follows while `Supervised.listen` runs."""
        assert self._process is not None  # attached
        self._outbox = memoryview(json.dumps(request).encode() + b"\n")
        self.received = len(self._inbox)
        self._process.register(self._requests, self._write, selectors.EVENT_WRITE)

    def receive(self) -> Message | None:
        """Return the next message, None where it is not complete; raises `NotAMessage`."""
        end = self._inbox.find(b"\n", self._searched)
        if end < 0:
            self._searched = len(self._inbox)
            return None
        line = bytes(self._inbox[:end])
        del self._inbox[: end + 1]
        self._searched = 0
        return _parse(line)

    def close(self) -> None:
        """Close our ends; closing them again does nothing."""
        if not self._closed:
            os.close(self._requests)
            os.close(self._results)
        self._closed = True

    def _write(self) -> None:
        assert self._process is not None  # attached
        try:
            self._outbox = self._outbox[os.write(self._requests, self._outbox) :]
        except BlockingIOError:
            return
        except BrokenPipeError:  # it has ended, and its result will be missing
            self._outbox = memoryview(b"")
        if not self._outbox:
            self._process.unregister(self._requests)

    def _read(self) -> None:
        assert self._process is not None  # attached
        chunk = read_now(self._results)
        if chunk == b"":
            self._process.unregister(self._results)
            self.closes_at = time.monotonic() + GRACE_S
        self._inbox += chunk or b""
        self.received += len(chunk or b"")


def _parse(line: bytes) -> Message:
    try:
        sent = json.loads(line)
        message = Message(sent["call"], sent["kind"], sent["value"])
    except (ValueError, TypeError, KeyError, RecursionError):
        raise NotAMessage(f"{line[:80]!r}") from None
    if message.kind not in _KINDS or not isinstance(message.call, int):
        raise NotAMessage(f"{line[:80]!r}")
    return message


def _request(target: str | Remote[Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(target, str):
        return {"target": target, "arguments": dict(arguments)}
    typed = {name: msgspec.to_builtins(value) for name, value in arguments.items()}
    return {"target": target.target, "arguments": typed, "through": CALL_TYPED}


OnFact = Callable[[Any], None]

_MOST_RECEIVED = 2**30
"""Bytes of messages of one call: a call that goes on sending facts must not fill our memory."""
_FIXED = f"the limit of the messages of one call is {_MOST_RECEIVED / MIB:g} MiB, which is fixed"


def _notice_logs(environment: Mapping[str, str | None]) -> None:
    """Log once where the user has torch log to the terminal: what a worker prints is not shown."""
    merged = {**os.environ, **environment}
    if merged.get("TORCH_LOGS") and not merged.get("TORCH_LOGS_OUT") and not _NOTICED:
        _NOTICED.append(True)
        _LOG.warning(
            "TORCH_LOGS is set, and a worker's output is not shown: TORCH_LOGS_OUT=FILE gets what torch logs "
            "there (in a sandbox with --no-sandbox only)"
        )


_NOTICED: list[bool] = []
_LOG = logging.getLogger(__name__)


class Worker(Closing):
    """A child process (`workers.child`) that serves call after call with its modules loaded.

    It is started when it is first needed; where a call ended it, the next one starts another. A call names
    its target by a `Remote`, or as "package.module:function" or "/path/file.py:function"; then arguments and
    results are JSON values (NaN and infinities included). A target with a parameter named `channel` is given
    a `workers.child.Channel`, by which it sends facts and announces its phase.

    One thread calls; any thread may call `stop`, after which no other process is started. Whatever ends this
    process, SIGKILL included, the worker and all that it started, daemons included, end too.
    """

    _process: Supervised
    """The last process that was started."""
    _pipes: MessagePipes

    def __init__(
        self,
        limits: Limits | None = None,
        *,
        preload: str | None = None,
        environment: Mapping[str, str | None] | None = None,
        interpreter: str | None = None,
        folder: Path | None = None,
        sandbox: SandboxProfile | None = None,
    ) -> None:
        """Start no process yet; each imports the module `preload` before it is ready.

        `environment` is added to ours and to `ONE_THREAD`, where None removes a variable. Under another
        `interpreter` (Python 3.11 or later) it finds the modules of that environment, otherwise those that
        this process finds. `folder` is its working directory. Code under test needs a `sandbox`, unless
        the user has turned that off; `in_force` has what became of it.
        """
        self.limits = (limits or Limits()).in_force()
        self.preload, self.environment, self.sandbox = preload, environment, sandbox
        self._interpreter, self._folder = interpreter, folder
        self.starts = 0
        """Number of processes that were started; what an earlier one had in memory is lost."""
        self.ends = 0
        """Number of processes that ended by themselves, or had to be ended."""
        self.ended: WorkerEnd | None = None
        """The end of the last process; None while it can be called."""
        self.in_force = InForce()
        """The parts of its sandbox; none before it is ready, and where there is no sandbox."""
        self._stopped = False
        self._lock = Lock()

    @property
    def alive(self) -> bool:
        """True while a process runs, or starts."""
        return self.starts > 0 and self.ended is None

    @property
    def pid(self) -> int | None:
        """Process id of the last process, not of its supervisor; None before `start` has waited."""
        return self._process.pid if self.starts else None

    def launch(self) -> None:
        """Start a process where none is alive, without waiting until it is ready; none after `stop`.

        Raises `MachineError` where it cannot be started.
        """
        with self._lock:
            if self._stopped or self.alive:
                return
            _notice_logs(self.environment or {})
            added: Mapping[str, str | None] = {
                **ONE_THREAD,
                **(self.environment or {}),
                **self.limits.as_environment(),
            }
            confined = None if self.sandbox is None or is_switched_off() else confine(self.sandbox, added)
            pipes = MessagePipes()
            settings = {
                "sandbox": confined and confined.rules, "folder": confined and confined.folder,
                "requests": pipes.for_requests, "results": pipes.for_results, "preload": self.preload,
                "path": None if self._interpreter else [entry or str(Path.cwd()) for entry in sys.path],
            }  # fmt: skip
            options = StartOptions(
                settings, self._interpreter or sys.executable, confined.environment if confined else added,
                self._folder, inherited=[pipes.for_requests, pipes.for_results],
            )  # fmt: skip
            try:
                self._process = Supervised(options, self.limits)
            except MachineError:
                pipes.close_theirs()
                pipes.close()
                if confined is not None:
                    confined.close()
                raise
            pipes.attach(self._process)
            self._pipes, self._confinement = pipes, confined
            self.ended, self.in_force, self._ready = None, InForce(), False
            self._call, self._phase, self._facts = 0, "the start", list[Any]()
            self.starts += 1

    def start(self) -> WorkerEnd | None:
        """Wait until a process can be called; return its end where it cannot, raise what `launch` raises."""
        self.launch()
        if self._stopped:
            return WorkerEnd(EndKind.STOPPED, phase="the start")
        if not self._ready:
            timeouts = Timeouts(self.limits.start_s)
            with self._closed_on_error():
                end = self._listen(timeouts)
                # The supervisor sends the id over a link of its own: on a busy machine it comes later.
                while not isinstance(end, WorkerEnd) and self.pid is None:
                    if not self._process.listen(timeouts.earlier(None)):
                        break
        return self.ended

    def call(
        self,
        target: str | Remote[Result],
        arguments: Mapping[str, Any] | None = None,
        *,
        timeout_s: float | None = None,
        on_fact: OnFact | None = None,
    ) -> CallResult[Result]:
        """Call `target` in a process and wait for its result, or for the end of the process.

        Arguments and the value of a `Remote` are converted, others are JSON. `timeout_s` replaces
        `limits.call_s` and `limits.step_s` for this call. `on_fact` is called with each fact as it comes.
        Where this process is interrupted meanwhile (Ctrl-C), or `on_fact` raises, the worker is ended and
        the exception goes on. Raises what `launch` raises.
        """
        end = self.start()
        if end is not None:
            return end
        with self._closed_on_error():
            self._call += 1
            self._process.read_output()
            self._process.tail, self._process.printed = b"", 0
            self._phase, self._facts = "", []
            self._pipes.send({"call": self._call, **_request(target, arguments or {})})
            limits = self.limits
            timeouts = Timeouts(limits.call_s, limits.step_s) if timeout_s is None else Timeouts(timeout_s)
            result = self._listen(timeouts, on_fact)
            return self._with_converted_value(result, target.result) if isinstance(target, Remote) else result

    def stop(self) -> None:
        """End it without waiting, and start no other one; a call that is under way returns at once.

        Any thread may call this.
        """
        with self._lock:
            self._stopped = True
            if self.starts:
                self._process.stop()

    def close(self) -> None:
        """End it and all that it started, and wait until they are gone; the next call starts another one."""
        if self.alive:
            self._finish(WorkerEnd(EndKind.STOPPED))

    @contextmanager
    def _closed_on_error(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            # The result that is still to come would be taken for that of the next call.
            self.close()
            raise

    def _with_converted_value(self, result: CallResult, kind: type[Result]) -> CallResult[Result]:
        if not isinstance(result, Answered):
            return result
        try:
            return replace(result, value=converted(result.value, kind))
        except msgspec.ValidationError as error:
            return self._garbage(f"another value: {error}")

    def _listen(self, timeouts: Timeouts, on_fact: OnFact | None = None) -> CallResult:
        """Listen until the call has a result, or the worker ends."""
        while True:
            try:
                message = self._pipes.receive()
            except NotAMessage as garbage:
                return self._garbage(str(garbage))
            result = self._wait(timeouts) if message is None else self._take(message, timeouts, on_fact)
            if result is not None:
                return result

    def _wait(self, timeouts: Timeouts) -> WorkerEnd | None:
        """Wait until something comes; return the end where nothing more can come, or too much came."""
        if self._process.gone and self._pipes.closes_at is not None:  # and every message was read
            return self._ended_by_itself()
        if self._process.listen(timeouts.earlier(self._pipes.closes_at)):
            # What was printed before a message was ready as early as the message: `listen` has read both.
            return self._flooded()
        if self._pipes.closes_at is not None:
            return self._garbage("closed its answer pipe")
        return self._timed_out(timeouts)

    def _take(self, message: Message, timeouts: Timeouts, on_fact: OnFact | None) -> CallResult | None:
        """Take a message; return the result of the call if it is one, or the end that it brings."""
        if message.call < self._call:  # of a thread of an earlier call that still runs
            return None
        expected = ("answered", "raised") if self._ready else ("ready",)
        match message.kind:
            case "phase":
                self._phase = str(message.value)
            case "fact":
                self._facts.append(message.value)
                if on_fact is not None:
                    on_fact(message.value)
            case kind if kind in expected and message.call == self._call:
                return self._result(message)
            case kind:
                return self._garbage(f"a message '{kind}' of call {message.call}")
        if timeouts.is_over:
            return self._timed_out(timeouts)
        if timeouts.renew():
            self._process.printed = 0
        return None

    def _result(self, message: Message) -> CallResult:
        # It may have been sent after some output, while `listen` was reading an earlier message.
        self._process.read_output()
        flooded = self._flooded()
        if flooded is not None:
            return flooded
        if message.kind != "raised":
            if not self._ready and self._confinement is not None:
                self.in_force = parts_in_force(self._process.sandbox or {})
            self._ready = True
            return Answered(value=message.value, facts=tuple(self._facts), output=self._output)
        try:
            raised = converted(message.value, RaisedInWorker)
        except msgspec.ValidationError:
            return self._garbage("an exception without its fields")
        raised = replace(raised, facts=tuple(self._facts), output=self._output)
        if names_out_of_memory(raised.type, raised.message):
            memory = self.limits.advice("memory")
            return self._end(WorkerEnd(EndKind.OUT_OF_MEMORY, (raised.sentence,), advice=memory))
        return raised

    def _flooded(self) -> WorkerEnd | None:
        limit, printed, received = self.limits.output, self._process.printed, self._pipes.received
        if (limit is not None and printed > limit) or received > _MOST_RECEIVED:
            advice = _FIXED if received > _MOST_RECEIVED else self.limits.advice("output")
            return self._end(WorkerEnd(EndKind.FLOODED, (max(printed, received),), advice=advice))
        return None

    def _timed_out(self, timeouts: Timeouts) -> WorkerEnd:
        assert timeouts.limit_s is not None  # nothing else ends the wait
        name = "start_s" if not self._ready else "step_s" if timeouts.is_of_a_step else "call_s"
        # The seconds of one call may be given with it, and then no setting raises them.
        advice = self.limits.advice(name) if timeouts.limit_s == getattr(self.limits, name) else ""
        return self._end(WorkerEnd(EndKind.TIMED_OUT, (timeouts.limit_s,), advice=advice))

    def _ended_by_itself(self) -> WorkerEnd:
        if self._process.stopped:
            return self._end(WorkerEnd(EndKind.STOPPED))
        if self._process.crowd is not None:
            counts = (self._process.crowd, self.limits.processes or 0)
            return self._end(WorkerEnd(EndKind.CROWDED, counts, advice=self.limits.advice("processes")))
        status = self._process.end_status
        advice = self.limits.advice("file_size") if status == -signal.SIGXFSZ else ""
        return self._end(end_of(status, advice=advice))

    def _garbage(self, sent: str) -> WorkerEnd:
        return self._end(WorkerEnd(EndKind.SENT_GARBAGE, (sent,)))

    def _end(self, end: WorkerEnd) -> WorkerEnd:
        self.ends += 1
        return self._finish(end)

    def _finish(self, end: WorkerEnd) -> WorkerEnd:
        self._process.close()  # first: what it printed until now is part of the end
        self._pipes.close()
        if self._confinement is not None:
            self._confinement.close()
        self.ended = replace(end, phase=self._phase, facts=tuple(self._facts), output=self._output)
        return self.ended

    @property
    def _output(self) -> str:
        return self._process.tail.decode(errors="replace")
