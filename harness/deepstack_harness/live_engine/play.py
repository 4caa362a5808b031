"""Play schedules on running engines: eager first, then compiled, family by family."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Self

from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.verdicts import Effect, Judgement, Verdict
from deepstack_harness.live_engine.answers import (
    distance,
    distances,
    judge_different,
    judge_equal,
    tolerance,
)
from deepstack_harness.live_engine.environment import EngineHome, Say
from deepstack_harness.live_engine.facts import EngineAnswer, LiveStep, ServedSchedule
from deepstack_harness.live_engine.model_folders import PROBES, FirstToken, ModelFolder, model_folder
from deepstack_harness.live_engine.models.tiny import TinyModel
from deepstack_harness.live_engine.played import EngineResult, RowMaker, pairs_met
from deepstack_harness.live_engine.proofs import missing_proofs, proved
from deepstack_harness.live_engine.recording import OrderRecorder
from deepstack_harness.live_engine.rows_read import judge_rows, judge_structure
from deepstack_harness.live_engine.schedules import (
    REPLAY_MODES,
    EngineRequest,
    ReplayMode,
    Schedule,
    Start,
    schedules_of,
)
from deepstack_harness.live_engine.session import EngineFailed, EngineSession, StartOrder

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

    def start(self, order: StartOrder, say: Say) -> "OneEngine":
        """Start one engine that records; raises `EngineFailed`."""
        return OneEngine(self.home, self.label, order, say, self.recorder)


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
                mine = [schedule for schedule in schedules if schedule.start is start]
                if mine or start is Start.PLAIN:
                    yield from self._play(self._order(start, compiled=compiled), mine)

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

    def _compare(self, engine: "OneEngine") -> Iterator[EngineResult]:
        """Compare the answers to single requests: without a payload, transformers, the eager arm."""
        begun = time.monotonic()
        with_payload = {probe.name: engine.alone(probe) for probe in PROBES}
        without = {probe.name: engine.alone(probe, zero=True) for probe in PROBES}
        judgements = [judge_structure(engine.session.facts, engine.steps_alone)]
        changed = {name: distance(with_payload[name], without[name]) for name in with_payload}
        judgements.append(judge_different(changed, tolerance({}), "with and without payload"))
        judgements.append(_beside_transformers(with_payload, without, self._folder.reference))
        if not engine.order.compiled:
            self._eager = (with_payload, without)
        elif self._eager is not None:
            noise = _between(self._eager[1], without)
            found = _between(self._eager[0], with_payload)
            judgements.append(judge_equal(found, tolerance(noise), "compiled beside eager"))
        yield engine.result("single requests", judgements, begun)


class OneEngine:
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
            said = Judgement(Rule.R2, Verdict.FAIL, detail=str(error), effect=Effect.CRASH)
            self._start_again()
            return self.result(schedule.name, [said], time.monotonic(), schedule, replay)

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
        served, found = self._distances(schedule, replay=replay)
        self.recorder.add(self.session.facts, schedule, replay, served.steps)
        judgements = [
            judge_equal(found, limit, f"alone beside busy{_told(served)}"),
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


def _told(served: ServedSchedule) -> str:
    """Return what was counted while a schedule was served, such as preemptions."""
    return "".join(f", {count} {name}" for name, count in sorted(served.counts.items()))


def _between(one: Answers, other: Answers) -> dict[str, float]:
    return {name: distance(answer, other[name]) for name, answer in one.items()}


def _beside_transformers(
    with_payload: Answers, without: Answers, reference: Sequence[FirstToken]
) -> Judgement:
    """Judge the first token beside that of transformers; the limit is that of both without payload."""
    found, noise, missing = {}, {}, []
    for name, one in zip(with_payload, reference, strict=True):
        found[name] = distance(_first(with_payload[name]), _expected(one.with_payload, with_payload[name]))
        noise[name] = distance(_first(without[name]), _expected(one.without, without[name]))
        missing.append(distance(_first(with_payload[name]), _expected(one.without, with_payload[name])))
    said = f"beside transformers (without payload {min(missing):.3g} off)"
    return judge_equal(found, tolerance(noise), said)


def _first(answer: EngineAnswer) -> EngineAnswer:
    return EngineAnswer(answer.tokens[:1], answer.logprobs[:1])


def _expected(figures: Sequence[float], beside: EngineAnswer) -> EngineAnswer:
    """Return figures of transformers as an answer, for the tokens that the engine has figures of."""
    there = beside.logprobs[0] if beside.logprobs else ()
    told = [value if there[token] is not None else None for token, value in enumerate(figures[: len(there)])]
    return EngineAnswer(beside.tokens[:1], (tuple(told),))
