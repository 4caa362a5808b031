"""A child process that is called like a function, watched, limited, and ended with all that it started."""

import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from deepstack_harness.errors import MachineError, says_out_of_memory
from deepstack_harness.workers.clock import Clock
from deepstack_harness.workers.limits import MIB, ONE_THREAD, Limits
from deepstack_harness.workers.messages import Message, MessagePipes, NotAMessage
from deepstack_harness.workers.outcomes import (
    Answered,
    CallResult,
    Crowded,
    Flooded,
    RaisedInWorker,
    RanOutOfMemory,
    SentGarbage,
    Stopped,
    TimedOut,
    WorkerEnd,
    end_of,
)
from deepstack_harness.workers.profiles import InForce, SandboxProfile, confine, is_switched_off, note
from deepstack_harness.workers.supervised import StartOptions, Supervised

OnFact = Callable[[Any], None]

_MOST_RECEIVED = 2**30
"""Bytes of messages of one call: a call that goes on sending facts must not fill our memory."""
_FIXED = f"the limit of the messages of one call is {_MOST_RECEIVED / MIB:g} MiB, which is fixed"


class Worker:
    """One child process (`workers.child`) that serves one call after the other and keeps its modules loaded.

    A call names its target as "package.module:function" or "/path/file.py:function"; arguments and results
    are JSON values (NaN and infinities included).  A target with a parameter named `channel` is given a
    `workers.child.Channel`, by which it sends facts and announces its phase.

    One thread calls; any thread may call `stop`.  Whatever ends this process, SIGKILL included, the worker
    and all that it started, daemons included, end too.
    """

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
        """Start it without waiting; it imports the module `preload` before it is ready.

        `environment` is added to ours and to `ONE_THREAD`, where None removes a variable.  Under another
        `interpreter` (Python 3.11 or later) it finds the modules of that environment, otherwise those that
        this process finds.  `folder` is its working directory.  Code under test needs a `sandbox`, unless
        the user has turned that off; `in_force` says what became of it.  Raises `MachineError` where the
        worker cannot be started.
        """
        self.limits = (limits or Limits()).in_force()
        self.ended: WorkerEnd | None = None
        """The end of the worker; None while it can be called."""
        self.in_force = InForce()
        """The parts of its sandbox; none before it is ready, and where there is no sandbox."""
        self._ready = False
        self._call = 0
        self._phase = "the start"
        self._facts: list[Any] = []
        added: Mapping[str, str | None] = {**ONE_THREAD, **(environment or {}), **self.limits.told()}
        self._confinement = None if sandbox is None or is_switched_off() else confine(sandbox, added)
        self._pipes = pipes = MessagePipes()
        try:
            self._process = Supervised(self._options(preload, added, interpreter, folder), self.limits)
        except MachineError:
            pipes.close_theirs()
            pipes.close()
            self._remove_folder()
            raise
        pipes.attach(self._process)

    def _options(
        self,
        preload: str | None,
        added: Mapping[str, str | None],
        interpreter: str | None,
        folder: Path | None,
    ) -> StartOptions:
        confined, pipes = self._confinement, self._pipes
        settings = {
            "sandbox": confined and confined.rules, "folder": confined and confined.folder,
            "requests": pipes.for_requests, "answers": pipes.for_answers, "preload": preload,
            "path": [entry or str(Path.cwd()) for entry in sys.path] if interpreter is None else None,
        }  # fmt: skip
        return StartOptions(
            settings, interpreter or sys.executable, confined.environment if confined else added,
            folder, inherited=[pipes.for_requests, pipes.for_answers],
        )  # fmt: skip

    def __enter__(self) -> Self:
        """Return this worker, to be closed."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End it."""
        self.close()

    @property
    def pid(self) -> int | None:
        """Process id of the process that is called, not of its supervisor; None before `start` has waited."""
        return self._process.pid

    def start(self) -> WorkerEnd | None:
        """Wait until it can be called; return its end where it cannot."""
        if self.ended is None and not self._ready:
            clock = Clock(self.limits.start_s)
            with self._closed_on_error():
                end = self._listen(clock)
                # The supervisor tells the id over a link of its own: on a busy machine it comes later.
                while not isinstance(end, WorkerEnd) and self.pid is None:
                    if not self._process.listen(clock.earlier(None)):
                        break
        return self.ended

    def call(
        self,
        target: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        seconds: float | None = None,
        on_fact: OnFact | None = None,
    ) -> CallResult:
        """Call `target` in the worker and wait for its result; a worker that has ended returns its end.

        `seconds` replaces `limits.call_s` and `limits.step_s` for this call.  `on_fact` is called with each
        fact as it comes.  Where this process is interrupted meanwhile (Ctrl-C), or `on_fact` raises, the
        worker is ended and the exception goes on.
        """
        end = self.start()
        if end is not None:
            return end
        with self._closed_on_error():
            self._call += 1
            self._process.read_output()
            self._process.tail, self._process.printed = b"", 0
            self._phase, self._facts = "", []
            self._pipes.send({"call": self._call, "target": target, "arguments": dict(arguments or {})})
            limits = self.limits
            clock = Clock(limits.call_s, limits.step_s) if seconds is None else Clock(seconds)
            return self._listen(clock, on_fact)

    def stop(self) -> None:
        """End it without waiting; a call that is under way returns `Stopped`.  Any thread may call this."""
        self._process.stop()

    def close(self) -> None:
        """End it and everything it started, and wait until they are gone."""
        self._process.close()
        self._pipes.close()
        self._remove_folder()
        if self.ended is None:
            self._end(Stopped)

    def _remove_folder(self) -> None:
        if self._confinement is not None:
            self._confinement.close()

    @contextmanager
    def _closed_on_error(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            # The answer that is still to come would be taken for that of the next call.
            self.close()
            raise

    def _listen(self, clock: Clock, on_fact: OnFact | None = None) -> CallResult:
        """Listen until the call is answered, or the worker ends."""
        while True:
            try:
                message = self._pipes.receive()
            except NotAMessage as garbage:
                return self._end(SentGarbage, found=str(garbage))
            result = self._wait(clock) if message is None else self._take(message, clock, on_fact)
            if result is not None:
                return result

    def _wait(self, clock: Clock) -> WorkerEnd | None:
        """Wait until something comes; return the end where nothing more can come, or too much came."""
        if self._process.gone and self._pipes.closes_at is not None:  # and every message was read
            return self._ended_by_itself()
        if self._process.listen(clock.earlier(self._pipes.closes_at)):
            # What was printed before a message was ready as early as the message: `listen` has read both.
            return self._flooded()
        if self._pipes.closes_at is not None:
            return self._end(SentGarbage, found="closed its answer pipe")
        return self._timed_out(clock)

    def _take(self, message: Message, clock: Clock, on_fact: OnFact | None) -> CallResult | None:
        """Take a message; return the result of the call if it is one, or the end that it brings."""
        if message.call < self._call:  # of a thread that an earlier call left behind
            return None
        match message.kind:
            case "phase":
                self._phase = str(message.value)
            case "fact":
                self._facts.append(message.value)
                if on_fact is not None:
                    on_fact(message.value)
            case kind if kind in self._awaited and message.call == self._call:
                return self._result(message)
            case kind:
                return self._end(SentGarbage, found=f"a message '{kind}' of call {message.call}")
        if clock.is_over:
            return self._timed_out(clock)
        if clock.renew():
            self._process.printed = 0
        return None

    @property
    def _awaited(self) -> tuple[str, ...]:
        return ("answered", "raised") if self._ready else ("ready",)

    def _result(self, message: Message) -> CallResult:
        # It may have been sent, behind some output, while `listen` was reading an earlier message.
        self._process.read_output()
        flooded = self._flooded()
        if flooded is not None:
            return flooded
        if message.kind != "raised":
            self._set_ready()
            return Answered(value=message.value, facts=tuple(self._facts), output=self._output)
        try:
            raised = msgspec.convert(message.value, RaisedInWorker)
        except msgspec.ValidationError:
            return self._end(SentGarbage, found="an exception without its fields")
        raised = replace(raised, facts=tuple(self._facts), output=self._output)
        if says_out_of_memory(raised.type, raised.message):
            return self._end(RanOutOfMemory, message=raised.sentence, advice=self.limits.advice("memory"))
        return raised

    def _set_ready(self) -> None:
        if not self._ready and self._confinement is not None:
            self.in_force = note(self._process.sandbox or {})
        self._ready = True

    def _flooded(self) -> WorkerEnd | None:
        limit, printed, received = self.limits.output, self._process.printed, self._pipes.received
        if (limit is not None and printed > limit) or received > _MOST_RECEIVED:
            advice = _FIXED if received > _MOST_RECEIVED else self.limits.advice("output")
            return self._end(Flooded, size=max(printed, received), advice=advice)
        return None

    def _timed_out(self, clock: Clock) -> WorkerEnd:
        name = "start_s" if not self._ready else "step_s" if clock.is_of_a_step else "call_s"
        # The seconds of one call may be given with it, and then no setting raises them.
        advice = self.limits.advice(name) if clock.limit_s == getattr(self.limits, name) else ""
        return self._end(TimedOut, seconds=clock.limit_s, advice=advice)

    def _ended_by_itself(self) -> WorkerEnd:
        if self._process.stopped:
            return self._end(Stopped)
        if self._process.crowd is not None:
            return self._end(
                Crowded, count=self._process.crowd, limit=self.limits.processes,
                advice=self.limits.advice("processes"),
            )  # fmt: skip
        status = self._process.end_status
        advice = self.limits.advice("file_size") if status == -signal.SIGXFSZ else ""
        return self._end(end_of, status=status, advice=advice)

    def _end(self, make: Callable[..., WorkerEnd], **fields: object) -> WorkerEnd:
        self._process.close()  # first: what it printed until now is part of the end
        self._remove_folder()
        known = {"phase": self._phase, "facts": tuple(self._facts), "output": self._output}
        self.ended = make(**fields, **known)
        return self.ended

    @property
    def _output(self) -> str:
        return self._process.tail.decode(errors="replace")


def call_once(
    target: str, arguments: Mapping[str, Any] | None = None, limits: Limits | None = None
) -> CallResult:
    """Call `target` in a worker of its own; see `Worker.call`."""
    with Worker(limits) as worker:
        return worker.call(target, arguments)
