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

import msgspec
from typing_extensions import override

from deepstack_harness.catalogue.orders import DEFAULT, FLAG, EngineRecording, RecordedOrder
from deepstack_harness.contract.case import Regime
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.trace import Op, Step, Trace
from deepstack_harness.contract.verdicts import BROKEN, Effect, Evidence, FaultKind, Judgement, Row, Verdict
from deepstack_harness.engines.live.environment import EngineHome
from deepstack_harness.engines.live.judge import (
    Answers,
    EngineResult,
    distance,
    distances,
    judge_distances,
    judge_steps,
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
    Reference,
    ServedSchedule,
    StartFacts,
    StartOrder,
    model_folder,
)
from deepstack_harness.errors import UsageError
from deepstack_harness.files import write_atomically
from deepstack_harness.sources.environments import Say
from deepstack_harness.workers.worker import Closing

_LENGTH = 4
"""Steps of a window: a visual one, and the three after it, in which a stale row has to show."""

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
        for number, step in enumerate(steps):
            window = steps[number : number + _LENGTH]
            # It begins with a visual step, or with the step before one.
            begins = step.spans or (len(window) > 1 and window[1].spans)
            trace = _trace(window, facts.capacity) if begins else None
            if trace is None:
                continue
            key = (any(step.replayed for step in window), _signature(window))
            self.traces.setdefault(key, (trace, schedule.how))
            self.flags.setdefault(key, set()).add(needed)

    def recording(self) -> EngineRecording:
        """Return the recording; raises `UsageError` where nothing was served."""
        if self.facts is None or not self.traces:
            raise UsageError("nothing was recorded: no schedule with an image was served")
        orders = []
        for key, (trace, how) in self.traces.items():
            # The alternatives with the fewest flags: one that contains another adds nothing.
            fewest = [few for few in self.flags[key] if not any(fewer < few for fewer in self.flags[key])]
            settings = tuple(sorted(tuple(sorted(few)) for few in fewest))
            orders.append(RecordedOrder(str(trace), how, settings, replayed=key[0]))
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
        if step.spans:
            spans = None if step.spans == ((0, step.asked),) else step.spans
            steps.append(Step(Op.SET, step.tokens or 0, spans=spans))
        elif replayed:  # elsewhere `forward` itself embeds text
            steps.append(Step(Op.SET, 0))
        steps.append(Step(Op.FORWARD, step.asked))
    return Trace(capacity, tuple(steps))


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
    """Play everything, and yield each result as it comes; `say` is called with what runs.

    Raises `EngineFailed` where an engine does not start.
    """
    for model in work.models:
        say(f"making a tiny {model.model_class}")
        with model_folder(work.home, model) as (folder, reference):
            yield from _FamilyPlay(work, model, folder, reference, say).results()


class _FamilyPlay:
    """One family: its engines, and the tokens that are compared between them."""

    def __init__(
        self, work: EngineWork, model: TinyModel, folder: Path, reference: Reference, say: Say
    ) -> None:
        self._work, self._model, self._folder, self._say = work, model, folder, say
        self._reference = reference
        self._eager: tuple[Answers, Answers] | None = None

    def results(self) -> Iterator[EngineResult]:
        """Start each engine that is needed, and play on it."""
        schedules = schedules_of(self._model, self._work.schedules)
        methods = self._work.methods.get(self._model.family, {})
        order = StartOrder(self._model, self._folder, methods=methods)
        for compiled in self._work.compiled:
            for start in Start:
                chosen = [schedule for schedule in schedules if schedule.start is start]
                if chosen or start is Start.PLAIN:
                    yield from self._play(replace(order, start=start, compiled=compiled), chosen)
            if compiled and self._model.driven == "attribute":
                for control in (Control.GUARDS_KEPT, Control.ZEROS):
                    yield from self._play(replace(order, compiled=True, control=control), ())

    def _play(self, order: StartOrder, schedules: Sequence[Schedule]) -> Iterator[EngineResult]:
        self._say(f"starting {order.arm} ({order.start}) of {self._work.label}, {self._model.family}")
        with self._work.start(order, self._say) as engine:
            if order.start is Start.PLAIN:
                yield from self._compare(engine)
            for schedule in schedules:
                yield from engine.results(schedule)

    def _compare(self, engine: "RunningEngine") -> Iterator[EngineResult]:
        """Compare single requests: without a payload, with transformers, with the eager arm."""
        begun = time.monotonic()
        with_payload = {probe.name: engine.alone(probe) for probe in PROBES}
        without = {probe.name: engine.alone(probe, zero=True) for probe in PROBES}
        facts, rules = engine.session.facts, [Rule.STRUCTURE]
        judgements = judge_steps(self._model, facts, engine.steps_alone, rules)
        changed = distances(with_payload, without)
        judgements.append(judge_distances(changed, tolerance({}), "with and without payload", equal=False))
        if self._reference:
            judgements.append(_beside_transformers(with_payload, without, self._reference))
        if not engine.order.compiled:
            self._eager = (with_payload, without)
        elif self._eager is not None:
            noise = distances(self._eager[1], without)
            differences = distances(self._eager[0], with_payload)
            absent = min(distances(self._eager[1], with_payload).values())
            comparison = f"compiled beside eager ({absent:.3g} from eager without payload)"
            judgements.append(judge_distances(differences, tolerance(noise), comparison))
        yield engine.result("single requests", judgements, begun)


class RunningEngine(Closing):
    """A running engine, with the tokens of single requests that it has served."""

    def __init__(
        self, home: EngineHome, label: str, order: StartOrder, say: Say, recorder: OrderRecorder | None = None
    ) -> None:
        """Start it; raises `EngineFailed`.  `recorder` takes the steps of all schedules."""
        self._home, self._say, self.order = home, say, order
        self._stack = ExitStack()
        self.session = self._stack.enter_context(EngineSession(home, order))
        self._label = label
        self._alone: dict[tuple[EngineRequest, bool], EngineAnswer] = {}
        self._last_limit: tuple[Schedule, float] | None = None
        self.recorder = OrderRecorder() if recorder is None else recorder
        self.steps_alone: list[LiveStep] = []
        """The steps of all single requests; payloads are numbered from 1 in each of them."""

    @override
    def close(self) -> None:
        """End the engine."""
        self._stack.close()

    def alone(self, request: EngineRequest, *, zero: bool = False) -> EngineAnswer:
        """Return the tokens of a whole request that runs by itself; it is served once."""
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
        begun = time.monotonic()
        name = f"{schedule.name} under {replay.name}" if replay else schedule.name
        self._say(f"{self.order.model.family} {self.order.arm}: {name}")
        try:
            if (
                self._last_limit is None or self._last_limit[0] != schedule
            ):  # else it is that of another graph mode
                self._last_limit = (schedule, tolerance(self._distances(schedule, zero=True)[1]))
            served, differences = self._distances(schedule, replay=replay)
        except EngineFailed as error:
            crash = Judgement(
                Rule.BOUNDARY, Verdict.FAIL, detail=str(error), effect=Effect.CRASH, shape=FaultKind.RAISED
            )
            self._stack.close()  # an engine that raised may be left in any state
            self.session = self._stack.enter_context(EngineSession(self._home, self.order))
            return self.result(schedule.name, [crash], begun, schedule, replay)
        self.recorder.add(self.session.facts, schedule, replay, served.steps)
        counts = "".join(f", {count} {name}" for name, count in sorted(served.counts.items()))
        judgements = [
            judge_distances(differences, self._last_limit[1], f"alone beside busy{counts}"),
            *judge_steps(self.order.model, self.session.facts, served.steps),
        ]
        judgements = proved(judgements, missing_proofs(schedule, replay, served))
        return self.result(schedule.name, judgements, begun, schedule, replay, served)

    def result(
        self, name: str, judgements: Sequence[Judgement], begun: float, schedule: Schedule | None = None,
        replay: ReplayMode | None = None, served: ServedSchedule | None = None,
    ) -> EngineResult:  # fmt: skip
        """Return judgements about a schedule, or about a comparison, as a result with what was met."""
        order, model, facts = self.order, self.order.model, self.session.facts
        flags = flags_of(schedule, replay)
        reach = f"{FLAG}{', '.join(flags)}" if flags else DEFAULT
        played = [name, replay.name] if replay else [name]
        rows = tuple(
            Row(
                engine="vllm", family=model.family, model_class=model.model_class, revision=self._label,
                source=self._label, arm=order.arm, regime=Regime.CAPTURED if replay else Regime.LIVE,
                backend=facts.backend, capture=replay.name if replay else "", dtype="float32",
                evidence=Evidence.EMULATED if replay else Evidence.ENGINE, torch=facts.torch,
                reach=reach if judged.verdict in BROKEN else None,
                case=" ".join([model.family, order.arm, order.start, *played]),
                **judged.columns,
            )
            for judged in judgements
        )  # fmt: skip
        steps = served.steps if served else ()
        return EngineResult(
            name=name, order=order, rows=rows,
            seconds=time.monotonic() - begun, replay=replay, steps=len(steps),
            replayed=sum(step.replayed for step in steps),
            visual_decodes=sum(step.is_visual_decode for step in steps),
            counts=dict(served.counts) if served else {}, met=pairs_met(steps),
        )  # fmt: skip

    def _distances(
        self, schedule: Schedule, *, zero: bool = False, replay: ReplayMode | None = None
    ) -> tuple[ServedSchedule, dict[str, float]]:
        """Serve a schedule; return its facts, and the distance of each whole request from a run by itself."""
        whole = [request for request in schedule.requests if request.aborted is None]
        alone = {request.name: self.alone(request, zero=zero) for request in whole}
        served = self.session.serve(schedule, zero=zero, replay=replay)
        return served, distances(alone, served.answers)


def _beside_transformers(
    with_payload: Answers, without: Answers, reference: Sequence[FirstToken]
) -> Judgement:
    """Judge the first token against that of transformers; the limit is that of both without payload."""

    def apart(answer: EngineAnswer, figures: Sequence[float]) -> float:
        row = answer.logprobs[0] if answer.logprobs else ()
        # Only the tokens that the engine has figures of.
        known = [value if own is not None else None for value, own in zip(figures, row, strict=False)]
        first = EngineAnswer(answer.tokens[:1], answer.logprobs[:1])
        return distance(first, EngineAnswer(answer.tokens[:1], (tuple(known),)))

    probes = list(zip(with_payload, reference, strict=True))
    differences = {name: apart(with_payload[name], token.with_payload) for name, token in probes}
    noise = {name: apart(without[name], token.without) for name, token in probes}
    missing = min(apart(with_payload[name], token.without) for name, token in probes)
    comparison = f"beside transformers (without payload {missing:.3g} off)"
    return judge_distances(differences, tolerance(noise), comparison)
