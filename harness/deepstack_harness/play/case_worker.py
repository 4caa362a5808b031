"""A warm worker that plays cases, as the process that judges them calls it; no torch is imported here.

`play.work` has the functions that run in the worker, and `play.source_work` those for classes of sources.
This module has their names and the types of their results, and makes the observation of a case from a result
or from the end of the worker. `check_buffers` imports buffer classes of the user in a worker.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Literal

import msgspec

from deepstack_harness.contract.case import BufferKind, Case
from deepstack_harness.contract.observation import METHODS, Observation, Raised, StepFacts
from deepstack_harness.errors import Reason, UsageError
from deepstack_harness.play.loading import BoundBuffer, Loaded, Played, load_buffer
from deepstack_harness.workers.child import Channel
from deepstack_harness.workers.limits import Limits
from deepstack_harness.workers.outcomes import (
    Answered,
    CallResult,
    EndKind,
    RaisedInWorker,
    WorkerEnd,
    value_of,
)
from deepstack_harness.workers.profiles import FOREIGN_LIMITS, OWN_CLASS, SandboxProfile
from deepstack_harness.workers.remote import Remote
from deepstack_harness.workers.worker import Worker

Way = Literal["methods", "forward", "compiled"]
"""How a class is called: by its get, set and clear, by its `embed_input_ids` and `forward`, or by these two
with its own text model, compiled."""


@dataclass(frozen=True)
class SourceClass:
    """A class of a source: the text by which the user named the source, and how the class is called.

    `family` chooses the class that the engine has for a model family, called by its methods; otherwise it
    is `model_class`, one of those that were found in the source.
    """

    text: str
    model_class: str
    way: Way = "methods"
    family: str | None = None


WORK = "deepstack_harness.play.work"
SOURCE_WORK = "deepstack_harness.play.source_work"
_COMPILED_WORK = "deepstack_harness.play.compiled_work"


@dataclass(frozen=True)
class ClassWays:
    """The ways in which a class of a source can be called, and the reasons why others cannot.

    `replays` is True for a class with graphs of its own, and `lost` is what those lose; `no_graphs` is the
    reason why graphs of its engine are not replayed. `splits` is True for a function that splits a payload
    over ranks. `compiled` is the place of the text model that the class passes its payload to,
    `MEMBER:LINE NAME`, where it is compiled and can be run, and `uncompiled` the reason why there is none.
    The payload of a class has rows for `every_token` of a step where it is looked up by token, as Gemma's
    per-layer inputs are. `loaded` is what the package lacked that was imported to make the class, as a
    sentence, and `places` has `MEMBER:FIRST-LAST` of its methods.
    """

    methods: bool = False
    forward: bool = False
    refusals: tuple[Reason, ...] = ()
    replays: bool = False
    lost: str = ""
    no_graphs: Reason | None = None
    splits: bool = False
    compiled: str = ""
    uncompiled: str = ""
    every_token: bool = False
    loaded: str = ""
    places: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Described:
    """The name of a class of a source, and the file name that tracebacks show."""

    model_class: str
    filename: str


PLAY = Remote(f"{WORK}:play", Played)
PLAY_SOURCE = Remote(f"{SOURCE_WORK}:play", Played)
DEFINE = Remote(f"{SOURCE_WORK}:define", ClassWays)
CONSTRUCT = Remote("deepstack_harness.play.constructed_work:construct", Observation)
STUBS_MET = Remote(f"{SOURCE_WORK}:stubs_met", tuple[Reason, ...])
DESCRIBE = Remote(f"{SOURCE_WORK}:describe", Described)
WHERE_RETURNED = Remote(f"{SOURCE_WORK}:where_returned", str)
LOAD = Remote(f"{WORK}:load", Loaded)
WRITE_ADAPTER = Remote(f"{WORK}:write_adapter", str)
SPLIT = Remote(f"{SOURCE_WORK}:split", Observation)
PLAY_SPLIT = Remote(f"{SOURCE_WORK}:play_split", Observation)
BIND = Remote(f"{WORK}:bind_shared", BoundBuffer)
BIND_SOURCE = Remote(f"{SOURCE_WORK}:bind_shared", BoundBuffer)
PLAY_SHARED = Remote(f"{WORK}:play_shared", Observation)
PLAY_ALONE = Remote(f"{WORK}:play_alone", Observation)


class CaseWorker(Worker):
    """A warm worker that plays cases."""

    def __init__(
        self,
        limits: Limits,
        *,
        environment: Mapping[str, str] | None = None,
        sandbox: SandboxProfile | None = None,
        preload: str = WORK,
    ) -> None:
        """Start no process before the first call; a worker that plays a source preloads `SOURCE_WORK`.

        Code under test needs a `sandbox`; None is for workers that only run code of ours.
        """
        super().__init__(limits, preload=preload, environment=environment, sandbox=sandbox)

    def prepare(
        self, *, environment: Mapping[str, str], sandbox: SandboxProfile | None, compiles: bool
    ) -> None:
        """Set what the next process is started with; close the worker first.

        A process whose cases are known to compile is ready when it has imported Dynamo too.
        """
        preload = _COMPILED_WORK if compiles else WORK
        self.preload, self.environment, self.sandbox = preload, environment, sandbox

    def play(self, case: Case, source: SourceClass | None = None) -> CallResult[Played]:
        """Play a case, of which `source` has the class; `observation_of` reads the result."""
        if source is None:
            result = self.call(PLAY, {"case": case})
        else:
            result = self.call(PLAY_SOURCE, {"case": case, "source": source})
        if isinstance(result, Answered) and not result.value.device_works:
            self.close()
        if isinstance(result, RaisedInWorker) and result.exit_code is None:
            self.close()
        return result


def is_foreign(case: Case) -> bool:
    """Return whether a case runs code that is none of ours, which may be the cause of any exception."""
    return case.buffer.kind in (BufferKind.SOURCE, BufferKind.USER)


def observation_of(case: Case, result: CallResult[Played]) -> Observation:
    """Return what a call of `CaseWorker.play` has shown of a case, whatever became of the worker.

    Where the worker ended in a method of the buffer, that is a fact of the step, like an exception; the
    steps after it are unavailable. Raises the error that the call raised, unless foreign code ran in the
    worker and the error is none of ours: then that code broke what measures it.
    """
    if isinstance(result, RaisedInWorker) and not (is_foreign(case) and result.exit_code is None):
        raise result.as_error
    steps = tuple(msgspec.convert(fact, StepFacts) for fact in result.facts[1:])
    if isinstance(result, Answered):
        rest = result.value.observation
        return replace(rest, steps=(*steps, *rest.steps))
    if not result.facts:
        error = "\n".join(filter(None, [_reason(result), result.output.strip()]))
        return Observation(case.dtype, case.device, 0, 0, "", (), error=error)
    beginning = msgspec.convert(result.facts[0], Observation)
    if isinstance(result, RaisedInWorker):
        # Foreign code has broken what measures it: what was seen before may be wrong already.
        beginning = replace(beginning, tampering=_reason(result))
    return _cut_short(case, beginning, steps, result)


def _cut_short(
    case: Case, beginning: Observation, steps: tuple[StepFacts, ...], end: WorkerEnd | RaisedInWorker
) -> Observation:
    """Return the observation of a case that ended after these steps."""
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


_WORDS: Mapping[EndKind, str] = MappingProxyType(
    {
        EndKind.SIGNALLED: "{}",  # the name of the signal
        EndKind.TIMED_OUT: "timeout",
        EndKind.OUT_OF_MEMORY: "out of memory",
        EndKind.FLOODED: "output flood",
        EndKind.EXITED: "exit",
    }
)


def kind_of(end: WorkerEnd) -> str:
    """Return the way in which a worker ended, as `Raised.type` names it."""
    return _WORDS.get(end.kind, "broken messages").format(*end.details)


_LOAD_ALL = Remote(f"{__name__}:load_all", type(None))
_IMPORT_TIMEOUT_S = 300.0
"""Timeout of the import of torch and of our own modules."""
_LOAD_TIMEOUT_S = 120.0
"""Timeout of the import of the user's modules."""


def check_buffers(names: Sequence[str]) -> None:
    """Refuse, with `UsageError`, classes that `load_buffer` refuses or that end a worker which loads them."""
    limits = replace(FOREIGN_LIMITS, start_s=_IMPORT_TIMEOUT_S, call_s=_LOAD_TIMEOUT_S)
    with Worker(limits, preload=__name__, sandbox=OWN_CLASS) as worker:
        result = worker.call(_LOAD_ALL, {"names": list(names)})
    if isinstance(result, WorkerEnd):
        raise UsageError(f"loading {', '.join(names)}: {result.sentence}")
    if (
        isinstance(result, RaisedInWorker)
        and "PermissionError" in result.message
        and worker.in_force.in_force
    ):
        raise UsageError(f"{result.message}; it runs in a sandbox, which --no-sandbox turns off")
    value_of(result, f"loading {', '.join(names)}")


def load_all(names: Sequence[str], channel: Channel) -> None:
    """Load classes, and forget them; for a worker."""
    for name in names:
        channel.phase(f"the import of {name}")
        load_buffer(name)
