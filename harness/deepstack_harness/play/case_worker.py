"""A worker that plays cases, seen from the process that judges them; no torch is imported here."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

import msgspec

from deepstack_harness.contract.buffer_ref import BufferKind
from deepstack_harness.contract.case import Case
from deepstack_harness.contract.observation import METHODS, Observation, Raised, StepFacts
from deepstack_harness.play.source_class import SourceClass
from deepstack_harness.workers.limits import Limits
from deepstack_harness.workers.outcomes import (
    Answered,
    CallResult,
    Exited,
    Flooded,
    RaisedInWorker,
    RanOutOfMemory,
    Signalled,
    TimedOut,
    WorkerEnd,
)
from deepstack_harness.workers.profiles import SandboxProfile
from deepstack_harness.workers.worker import Worker

WORK = "deepstack_harness.play.work"
_COMPILED_WORK = "deepstack_harness.play.compiled_work"


class CaseWorker:
    """Worker that plays cases; a case that broke it makes the next call start another one."""

    def __init__(
        self,
        limits: Limits,
        environment: Mapping[str, str] | None = None,
        started: Callable[[Worker], None] = lambda _: None,
        sandbox: SandboxProfile | None = None,
        *,
        compiles: bool = False,
    ) -> None:
        """Start nothing before the first call; `started` is called with every worker.

        Code under test needs a `sandbox`; None is for workers that run code of ours alone.  A worker whose
        cases are known to compile is ready when it has imported Dynamo too.
        """
        self._sandbox = sandbox
        self._preload = _COMPILED_WORK if compiles else WORK
        self._limits = limits
        self._environment = environment
        self._started = started
        self._worker: Worker | None = None
        self.ends = 0
        """Workers that ended by themselves, or had to be ended."""

    def __enter__(self) -> Self:
        """Return this worker, to be closed."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the worker."""
        self.close()

    def start(self) -> WorkerEnd | None:
        """Wait until a worker can be called; return its end where it cannot."""
        return self._ready().start()

    def play(self, case: Case, source: SourceClass | None = None) -> CallResult:
        """Play a case; `observation_of` reads the result."""
        asked = {"case": msgspec.to_builtins(case), "source": msgspec.to_builtins(source)}
        result = self.call(f"{WORK}:play", asked)
        if isinstance(result, Answered) and not result.value["device_works"]:
            self.close()
        if isinstance(result, RaisedInWorker) and result.exit_code is None:
            self.close()
        return result

    def call(self, target: str, arguments: Mapping[str, Any]) -> CallResult:
        """Call any function in the worker, as `Worker.call` does."""
        result = self._ready().call(target, arguments)
        if isinstance(result, WorkerEnd):
            self.ends += 1
            self.close()
        return result

    def close(self) -> None:
        """End the worker; the next call starts another one."""
        if self._worker is not None:
            self._worker.close()
            self._worker = None

    def _ready(self) -> Worker:
        if self._worker is None:
            self._worker = Worker(
                self._limits, preload=self._preload, environment=self._environment, sandbox=self._sandbox
            )
            self._started(self._worker)
        return self._worker


def observation_of(case: Case, result: CallResult) -> Observation:
    """Return what a call of `CaseWorker.play` has shown of a case, whatever became of the worker.

    Where the worker ended in a method of the buffer, that is a fact of the step, like an exception; the
    steps behind it are unavailable.  Raises the error that the call raised, unless foreign code ran in the
    worker and the error is none of ours: then that code broke what measures it.
    """
    foreign = case.buffer.kind in (BufferKind.SOURCE, BufferKind.USER)
    if isinstance(result, RaisedInWorker) and not (foreign and result.exit_code is None):
        raise result.as_error
    steps = tuple(msgspec.convert(fact, StepFacts) for fact in result.facts[1:])
    if isinstance(result, Answered):
        seen = msgspec.convert(result.value["observation"], Observation)
        return replace(seen, steps=(*steps, *seen.steps))
    if not result.facts:
        told = "\n".join(filter(None, [_reason(result), result.output.strip()]))
        return Observation(case.dtype, case.device, 0, 0, "", (), error=told)
    beginning = msgspec.convert(result.facts[0], Observation)
    return _cut_short(case, beginning, steps, result)


def _cut_short(
    case: Case, beginning: Observation, steps: tuple[StepFacts, ...], end: WorkerEnd | RaisedInWorker
) -> Observation:
    """Return the observation of a case that ended behind these steps."""
    done = len(steps)
    if done == len(case.trace.steps):
        return replace(beginning, steps=steps, ended=_reason(end))
    step = str(case.trace.steps[done])
    capacity = steps[-1].capacity if steps else case.trace.capacity
    if isinstance(end, RaisedInWorker):
        ended = f"{_reason(end)} in step {done + 1} '{step}'"
    else:
        ended = f"the process {end.reason} in step {done + 1} '{step}'"
    if isinstance(end, WorkerEnd) and end.phase in METHODS:
        raised = Raised(kind_of(end), end.reason, end.phase, "", ends=True)
        last = StepFacts(step, capacity, raised=raised)
    else:
        last = StepFacts(step, capacity, unavailable=ended)
    rest = (StepFacts(str(step), capacity, unavailable=ended) for step in case.trace.steps[done + 1 :])
    return replace(beginning, steps=(*steps, last, *rest), ended=ended)


def _reason(end: WorkerEnd | RaisedInWorker) -> str:
    if isinstance(end, WorkerEnd):
        return end.sentence
    return f"the code that measures raised {end.sentence}"


def kind_of(end: WorkerEnd) -> str:
    """Return the way in which a worker ended, as `Raised.type` names it."""
    match end:
        case Signalled():
            return end.name
        case TimedOut():
            return "timeout"
        case RanOutOfMemory():
            return "out of memory"
        case Flooded():
            return "output flood"
        case Exited():
            return "exit"
    return "broken messages"
