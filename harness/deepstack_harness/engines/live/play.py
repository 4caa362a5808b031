"""Play schedules on running engines: eager first, then compiled, family by family.

`OrderRecorder` reduces the steps of served schedules to distinct orders of calls, as traces that `audit`
plays. An order is a window of a few steps that has a visual one.  Two windows are the same order where each
step is visual or not, replayed or not, and as much longer or shorter than the one before it.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

import msgspec

from deepstack_harness.catalogue.orders import EngineRecording, RecordedOrder
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.trace import Op, Step, Trace
from deepstack_harness.contract.verdicts import Effect, FaultKind, Judgement, Verdict
from deepstack_harness.engines.live.environment import EngineHome
from deepstack_harness.engines.live.judge import (
    EngineResult,
    RowMaker,
    distance,
    distances,
    judge_different,
    judge_equal,
    judge_rows,
    judge_structure,
    missing_proofs,
    pairs_met,
    proved,
    tolerance,
)
from deepstack_harness.engines.live.models import TinyModel
from deepstack_harness.engines.live.schedules import (
    REPLAY_MODES,
    Control,
    EngineRequest,
    ReplayMode,
    Schedule,
    Start,
    flags_of,
    schedules_of,
)
from deepstack_harness.engines.live.session import (
    PROBES,
    EngineAnswer,
    EngineFailed,
    EngineSession,
    FirstToken,
    LiveStep,
    ModelFolder,
    ServedSchedule,
    StartFacts,
    StartOrder,
    model_folder,
)
from deepstack_harness.errors import UsageError
from deepstack_harness.files import write_atomically
from deepstack_harness.sources.environments import Say

_LENGTH = 4
"""Steps of a window: a visual one, and three behind it, which is how long a stale row has to show."""

Signature = tuple[tuple[bool, bool, bool, int], ...]


@dataclass
class OrderRecorder:
    """The distinct orders so far, each with the alternatives of flags that lead to it."""

    facts: StartFacts | None = None
    traces: dict[tuple[bool, Signature], tuple[Trace, str]] = field(default_factory=dict)
    flags: dict[tuple[bool, Signature], set[frozenset[str]]] = field(default_factory=dict)

    def add(
        self, facts: StartFacts, schedule: Schedule, replay: ReplayMode | None, steps: Sequence[LiveStep]
    ) -> None:
        """Take the steps of one schedule as it was served."""
        self.facts = self.facts or facts
        needed = frozenset(flags_of(schedule, replay))
        for window in _windows(steps):
            trace = _trace(window, facts.capacity)
            if trace is None:
                continue
            key = (any(step.replayed for step in window), _signature(window))
            self.traces.setdefault(key, (trace, schedule.how))
            self.flags.setdefault(key, set()).add(needed)

    def recording(self) -> EngineRecording:
        """Return the recording; raises `UsageError` where nothing was served."""
        if self.facts is None or not self.traces:
            raise UsageError("nothing was recorded: no schedule with an image was served")
        orders = [
            RecordedOrder(str(trace), how, _minimal(self.flags[key]), replayed=key[0])
            for key, (trace, how) in self.traces.items()
        ]
        return EngineRecording("vllm", self.facts.vllm, self.facts.runner, self.facts.deciding, tuple(orders))

    def write(self, path: Path) -> int:
        """Write the recording, and return its number of orders; raises `UsageError` where that cannot be."""
        recording = self.recording()
        text = msgspec.json.format(msgspec.json.encode(recording, order="deterministic"), indent=1)
        try:
            write_atomically(path, text + b"\n")
        except OSError as error:
            raise UsageError(f"cannot write to '{path}': {error.strerror}") from None
        return len(recording.orders)


def _windows(steps: Sequence[LiveStep]) -> Iterator[Sequence[LiveStep]]:
    """Yield the windows that begin with a visual step, or with the step before one."""
    for number in range(len(steps)):
        window = steps[number : number + _LENGTH]
        if window[0].visual or (len(window) > 1 and window[1].visual):
            yield window


def _signature(window: Sequence[LiveStep]) -> Signature:
    kinds, before = [], window[0].asked
    for step in window:
        longer = (step.asked > before) - (step.asked < before)
        kinds.append((step.visual > 0, step.visual == step.tokens, step.replayed, longer))
        before = step.asked
    return tuple(kinds)


def _trace(window: Sequence[LiveStep], capacity: int) -> Trace | None:
    """Return a window as a trace; None where one size is live here and a replay there.

    A class whose graphs are emulated captures a size in its first run and replays it from then on, so a live
    step needs a size that no other step of the window has.
    """
    replayed = {step.asked for step in window if step.replayed}
    live = [step.asked for step in window if not step.replayed]
    if replayed and (replayed & set(live) or len(set(live)) < len(live) or capacity in live):
        return None
    steps = [Step(Op.PROFILE, size) for size in (capacity, *sorted(replayed - {capacity}, reverse=True))]
    for step in window:
        steps += _embedding(step, alone=bool(replayed))
        steps.append(Step(Op.FORWARD, step.asked))
    return Trace(capacity, tuple(steps))


def _embedding(step: LiveStep, *, alone: bool) -> list[Step]:
    """Return what embeds the rows of a step; `forward` itself embeds text where nothing is replayed."""
    if step.visual:
        whole = step.spans == ((0, step.asked),)
        return [Step(Op.SET, step.tokens or 0, spans=None if whole else step.spans)]
    return [Step(Op.SET, 0)] if alone else []


def _minimal(flag_sets: set[frozenset[str]]) -> tuple[tuple[str, ...], ...]:
    """Return the alternatives that need the fewest flags: one that contains another says nothing more."""
    smallest = [flags for flags in flag_sets if not any(others < flags for others in flag_sets)]
    return tuple(sorted(tuple(sorted(flags)) for flags in smallest))


Answers = Mapping[str, EngineAnswer]

_ALONE = Schedule("alone", "one request by itself", ())


@dataclass(frozen=True)
class EngineWork:
    """An engine and the work for it: families, schedules by name (none: all), and the ways to run.

    `methods` are put into the class of a family, and named in `label`; `recorder` takes all steps.
    """

    home: EngineHome
    label: str
    models: Sequence[TinyModel]
    schedules: Sequence[str] = ()
    compiled: Sequence[bool] = (False, True)
    methods: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    recorder: OrderRecorder = field(default_factory=OrderRecorder)

    def start(self, order: StartOrder, say: Say) -> "RunningEngine":
        """Start one engine that records; raises `EngineFailed`."""
        return RunningEngine(self.home, self.label, order, say, self.recorder)


def play_engine(work: EngineWork, say: Say) -> Iterator[EngineResult]:
    """Play everything, and yield each result as it comes; `say` is told what runs.

    Raises `EngineFailed` where an engine does not start.
    """
    for model in work.models:
        say(f"making a tiny {model.model_class}")
        with model_folder(work.home, model) as folder:
            yield from _FamilyPlay(work, model, folder, say).results()


class _FamilyPlay:
    """One family: its engines, and the answers that are compared between them."""

    def __init__(self, work: EngineWork, model: TinyModel, folder: ModelFolder, say: Say) -> None:
        self._work, self._model, self._folder, self._say = work, model, folder, say
        self._eager: tuple[Answers, Answers] | None = None

    def results(self) -> Iterator[EngineResult]:
        """Start each engine that is needed, and play on it."""
        schedules = schedules_of(self._model, self._work.schedules)
        for compiled in self._work.compiled:
            for start in Start:
                chosen = [schedule for schedule in schedules if schedule.start is start]
                if chosen or start is Start.PLAIN:
                    yield from self._play(self._order(start, compiled=compiled), chosen)
            if compiled and self._model.driven == "attribute":
                for control in (Control.GUARDS_KEPT, Control.ZEROS):
                    order = replace(self._order(Start.PLAIN, compiled=True), control=control)
                    yield from self._play(order, ())

    def _order(self, start: Start, *, compiled: bool) -> StartOrder:
        methods = self._work.methods.get(self._model.family, {})
        return StartOrder(self._model, self._folder.path, start, compiled, methods)

    def _play(self, order: StartOrder, schedules: Sequence[Schedule]) -> Iterator[EngineResult]:
        self._say(f"starting {order.arm} ({order.start}) of {self._work.label}, {self._model.family}")
        with self._work.start(order, self._say) as engine:
            if order.start is Start.PLAIN:
                yield from self._compare(engine)
            for schedule in schedules:
                yield from engine.results(schedule)

    def _compare(self, engine: "RunningEngine") -> Iterator[EngineResult]:
        """Compare the answers to single requests: without a payload, transformers, the eager arm."""
        begun = time.monotonic()
        with_payload = {probe.name: engine.alone(probe) for probe in PROBES}
        without = {probe.name: engine.alone(probe, zero=True) for probe in PROBES}
        judgements = [judge_structure(engine.session.facts, engine.steps_alone)]
        changed = {name: distance(with_payload[name], without[name]) for name in with_payload}
        judgements.append(judge_different(changed, tolerance({}), "with and without payload"))
        if self._folder.reference:
            judgements.append(_beside_transformers(with_payload, without, self._folder.reference))
        if not engine.order.compiled:
            self._eager = (with_payload, without)
        elif self._eager is not None:
            noise = _distances_between(self._eager[1], without)
            differences = _distances_between(self._eager[0], with_payload)
            absent = min(_distances_between(self._eager[1], with_payload).values())
            comparison = f"compiled beside eager ({absent:.3g} from eager without payload)"
            judgements.append(judge_equal(differences, tolerance(noise), comparison))
        yield engine.result("single requests", judgements, begun)


class RunningEngine:
    """A running engine, with the answers to single requests that it has given."""

    def __init__(
        self, home: EngineHome, label: str, order: StartOrder, say: Say, recorder: OrderRecorder | None = None
    ) -> None:
        """Start it; raises `EngineFailed`.  `recorder` takes the steps of all schedules."""
        self._home, self._say, self.order = home, say, order
        self._stack = ExitStack()
        self.session = self._stack.enter_context(EngineSession(home, order))
        self._rows = RowMaker(label, order, self.session.facts)
        self._alone: dict[tuple[EngineRequest, bool], EngineAnswer] = {}
        self._last_limit: tuple[Schedule, float] | None = None
        self.recorder = OrderRecorder() if recorder is None else recorder
        self.steps_alone: list[LiveStep] = []
        """The steps of all requests that were alone."""

    def __enter__(self) -> Self:
        """Return it, to be closed."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the engine."""
        self._stack.close()

    def alone(self, request: EngineRequest, *, zero: bool = False) -> EngineAnswer:
        """Return the answer to a request that is alone, in whole; asked once."""
        only = replace(request, name="only", arrives=0, aborted=None)
        if (only, zero) not in self._alone:
            served = self.session.serve(replace(_ALONE, requests=(only,)), zero=zero)
            self._alone[only, zero] = served.answers["only"]
            self.steps_alone += served.steps
        return self._alone[only, zero]

    def results(self, schedule: Schedule) -> Iterator[EngineResult]:
        """Play a schedule as it is, then under each graph mode that it is about."""
        # The Python of the class is the same when the model is compiled: its replays are played once.
        modes = () if self.order.compiled else schedule.replays
        for replay in (None, *(REPLAY_MODES[name] for name in modes)):
            result = self.judge(schedule, replay)
            yield result
            if any(row.effect is Effect.CRASH for row in result.rows):
                return

    def judge(self, schedule: Schedule, replay: ReplayMode | None = None) -> EngineResult:
        """Play a schedule in one way; an engine that raises, ends or hangs is a crash, and started again."""
        try:
            return self._judged(schedule, replay, self._limit(schedule))
        except EngineFailed as error:
            crash = Judgement(
                Rule.BOUNDARY, Verdict.FAIL, detail=str(error), effect=Effect.CRASH, shape=FaultKind.RAISED
            )
            self._start_again()
            return self.result(schedule.name, [crash], time.monotonic(), schedule, replay)

    def result(
        self, name: str, judgements: Sequence[Judgement], begun: float, schedule: Schedule | None = None,
        replay: ReplayMode | None = None, served: ServedSchedule | None = None,
    ) -> EngineResult:  # fmt: skip
        """Return judgements as a result, with what was met."""
        steps = served.steps if served else ()
        return EngineResult(
            name=name, order=self.order, rows=self._rows.rows(judgements, name, schedule, replay),
            seconds=time.monotonic() - begun, replay=replay, steps=len(steps),
            replayed=sum(step.replayed for step in steps),
            visual_decodes=sum(step.is_visual_decode for step in steps),
            counts=dict(served.counts) if served else {}, met=pairs_met(steps),
        )  # fmt: skip

    def _limit(self, schedule: Schedule) -> float:
        """Return the tolerance of a schedule: the last one's is kept, for its graph modes."""
        if self._last_limit is None or self._last_limit[0] != schedule:
            self._last_limit = (schedule, tolerance(self._distances(schedule, zero=True)[1]))
        return self._last_limit[1]

    def _judged(self, schedule: Schedule, replay: ReplayMode | None, limit: float) -> EngineResult:
        begun = time.monotonic()
        name = f"{schedule.name} under {replay.name}" if replay else schedule.name
        self._say(f"{self.order.model.family} {self.order.arm}: {name}")
        served, differences = self._distances(schedule, replay=replay)
        self.recorder.add(self.session.facts, schedule, replay, served.steps)
        judgements = [
            judge_equal(differences, limit, f"alone beside busy{_counts_text(served)}"),
            *judge_rows(served.steps),
        ]
        if replay is None:
            judgements.append(judge_structure(self.session.facts, served.steps))
        judgements = proved(judgements, missing_proofs(schedule, replay, served))
        return self.result(schedule.name, judgements, begun, schedule, replay, served)

    def _distances(
        self, schedule: Schedule, *, zero: bool = False, replay: ReplayMode | None = None
    ) -> tuple[ServedSchedule, dict[str, float]]:
        """Serve a schedule; return its facts, and the distance of each whole request from itself alone."""
        whole = [request for request in schedule.requests if request.aborted is None]
        alone = {request.name: self.alone(request, zero=zero) for request in whole}
        served = self.session.serve(schedule, zero=zero, replay=replay)
        return served, distances(replace(served, answers=alone), served, alone)

    def _start_again(self) -> None:
        """Start a new engine: one that raised may be left in any state."""
        self._stack.close()
        self.session = self._stack.enter_context(EngineSession(self._home, self.order))


def _counts_text(served: ServedSchedule) -> str:
    """Return what was counted while a schedule was served, such as preemptions."""
    return "".join(f", {count} {name}" for name, count in sorted(served.counts.items()))


def _distances_between(answers: Answers, others: Answers) -> dict[str, float]:
    return {name: distance(answer, others[name]) for name, answer in answers.items()}


def _beside_transformers(
    with_payload: Answers, without: Answers, reference: Sequence[FirstToken]
) -> Judgement:
    """Judge the first token beside that of transformers; the limit is that of both without payload."""
    differences, noise, missing = {}, {}, []
    for name, first_token in zip(with_payload, reference, strict=True):
        differences[name] = distance(
            _first_answer_token(with_payload[name]),
            _reference_answer(first_token.with_payload, with_payload[name]),
        )
        noise[name] = distance(
            _first_answer_token(without[name]), _reference_answer(first_token.without, without[name])
        )
        missing.append(
            distance(
                _first_answer_token(with_payload[name]),
                _reference_answer(first_token.without, with_payload[name]),
            )
        )
    comparison = f"beside transformers (without payload {min(missing):.3g} off)"
    return judge_equal(differences, tolerance(noise), comparison)


def _first_answer_token(answer: EngineAnswer) -> EngineAnswer:
    return EngineAnswer(answer.tokens[:1], answer.logprobs[:1])


def _reference_answer(figures: Sequence[float], beside: EngineAnswer) -> EngineAnswer:
    """Return figures of transformers as an answer, for the tokens that the engine has figures of."""
    row = beside.logprobs[0] if beside.logprobs else ()
    known = [value if row[token] is not None else None for token, value in enumerate(figures[: len(row)])]
    return EngineAnswer(beside.tokens[:1], (tuple(known),))
