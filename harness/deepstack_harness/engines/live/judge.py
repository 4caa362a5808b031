"""Judge what a real engine answered, and what its steps read from the payload buffer.

- Answers are compared: alone against busy, with against without the payload, compiled against eager.  Each
  of these oracles says what it cannot see (`ORACLES`).  All of them judge R0: a user notices nothing but
  the answer.
- The steps are judged by the live ledger (`judge_structure`, `judge_rows`).
- A schedule names its proofs that it did what it is for: requests were preempted, an image was split, a
  draft was made.  Without one of them its rules were not put to the test, and a PASS becomes ERROR
  (`proved`).

`RowMaker` makes the rows of one schedule, or of a comparison of arms, on one engine.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from types import MappingProxyType
from typing import NamedTuple

from deepstack_harness.catalogue.orders import DEFAULT, FLAG
from deepstack_harness.contract.arm import ArmSpec
from deepstack_harness.contract.case import Case, Regime, source_buffer
from deepstack_harness.contract.observation import Observation, StepFacts
from deepstack_harness.contract.oracles.judge import judge_all
from deepstack_harness.contract.oracles.trace_audit import ObservedCase
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.trace import Op, Step, Trace
from deepstack_harness.contract.verdicts import BROKEN, Effect, Evidence, FaultKind, Judgement, Row, Verdict
from deepstack_harness.engines.live.schedules import Aim, EngineRequest, ReplayMode, Schedule, flags_of
from deepstack_harness.engines.live.session import (
    EngineAnswer,
    LiveStep,
    ServedSchedule,
    StartFacts,
    StartOrder,
)

TIMES = 10.0
"""Allowed distance, in distances of the same two runs without a payload: what batching costs alone."""
FLOOR = 1e-4
"""Allowed distance of log-probabilities in float32 where those two runs agree to the last digit."""
UNIT = "log-probability"


@dataclass(frozen=True)
class EngineOracle:
    """An oracle over a running engine: the question, and what it is blind to."""

    name: str
    question: str
    cannot_see: str


ORACLES: Mapping[str, EngineOracle] = MappingProxyType(
    {
        oracle.name: oracle
        for oracle in (
            EngineOracle(
                "alone", "is the answer to a request the same alone and beside others?",
                "a fault that is there in both, such as a payload that is always missing (43602)",
            ),
            EngineOracle(
                "sensitivity", "does the answer change when the payload is taken away?",
                "a payload that arrives, and is wrong",
            ),
            EngineOracle(
                "eager", "does the compiled engine answer like the uncompiled one?",
                "a fault of the model class itself, which both have",
            ),
            EngineOracle(
                "transformers", "does the engine answer like transformers?",
                "everything after the first token of a request that is alone",
            ),
            EngineOracle(
                "ledger", "are the rows that a step reads those of its own visual embeddings?",
                "what becomes of right rows afterwards: a compiled graph that never adds them (43602)",
            ),
        )
    }
)  # fmt: skip


def distance(answer: EngineAnswer, other: EngineAnswer) -> float:
    """Return the largest difference of log-probabilities, up to the first token that differs.

    Behind that token the two contexts are different.  A missing token, a missing figure and nan are infinite.
    """
    worst = 0.0
    for row, other_row, token, other_token in zip(
        answer.logprobs, other.logprobs, answer.tokens, other.tokens, strict=False
    ):
        worst = max(worst, _largest(row, other_row))
        if token != other_token:
            return worst
    complete = len(answer.tokens) == len(other.tokens) == len(answer.logprobs) == len(other.logprobs)
    return worst if complete and answer.tokens else math.inf


def _largest(row: Sequence[float | None], other: Sequence[float | None]) -> float:
    """Return the largest difference of two rows; infinite where one has no figure, or one that is nan."""
    if len(row) != len(other) or not row:
        return math.inf
    differences = [_difference(value, other_value) for value, other_value in zip(row, other, strict=True)]
    return max(differences)


def _difference(value: float | None, other: float | None) -> float:
    if value is None or other is None:
        return 0.0 if value is other else math.inf
    if value == other:  # two of -inf among them: a token that both exclude
        return 0.0
    difference = abs(value - other)
    return math.inf if math.isnan(difference) else difference


def distances(served: ServedSchedule, other: ServedSchedule, names: Iterable[str]) -> dict[str, float]:
    """Return the distance of each request's answers; infinite where one of both has none."""
    return {
        name: distance(served.answers[name], other.answers[name])
        if name in served.answers and name in other.answers
        else math.inf
        for name in names
    }


def tolerance(noise: Mapping[str, float]) -> float:
    """Return the limit that follows from the distances of the same runs without a payload.

    Runs that differ by an infinite distance without a payload say nothing: the limit is the smallest then.
    """
    finite = [value for value in noise.values() if math.isfinite(value)]
    return max(FLOOR, TIMES * max(finite, default=0.0))


def judge_equal(by_request: Mapping[str, float], limit: float, comparison: str) -> Judgement:
    """Judge that answers are equal: the request that is furthest off decides."""
    if not by_request:
        return Judgement(Rule.OUTPUT, Verdict.ERROR, detail=f"{comparison}: there is nothing to compare")
    name = max(by_request, key=lambda each: by_request[each])
    wrong = sorted(each for each, value in by_request.items() if value > limit)
    detail = f"{comparison}: {', '.join(wrong)} off" if wrong else f"{comparison}: equal"
    verdict = Verdict.FAIL if wrong else Verdict.PASS
    effect = Effect.OUTPUT if wrong else None
    shape = FaultKind.OUTPUT if wrong else None
    return Judgement(Rule.OUTPUT, verdict, by_request[name], limit, UNIT, detail, effect, shape=shape)


def judge_different(by_request: Mapping[str, float], limit: float, comparison: str) -> Judgement:
    """Judge that answers differ by more than the limit: the request that is nearest decides."""
    if not by_request:
        return Judgement(Rule.OUTPUT, Verdict.ERROR, detail=f"{comparison}: there is nothing to compare")
    name = min(by_request, key=lambda each: by_request[each])
    same = sorted(each for each, value in by_request.items() if value <= limit)
    detail = (
        f"{comparison}: no influence on {', '.join(same)}" if same else f"{comparison}: the payload counts"
    )
    if same:
        return Judgement(
            Rule.OUTPUT,
            Verdict.FAIL,
            by_request[name],
            limit,
            UNIT,
            detail,
            Effect.OUTPUT,
            shape=FaultKind.NO_EFFECT,
        )
    return Judgement(Rule.OUTPUT, Verdict.PASS, by_request[name], limit, UNIT, detail)


JUDGED = (Rule.STRUCTURE, Rule.BOUNDARY, Rule.FRESHNESS, Rule.CAPACITY, Rule.CLEAR)
"""The rules of the buffer that the reads of an engine put to the test."""


def judge_steps(order: StartOrder, facts: StartFacts, steps: Sequence[LiveStep]) -> list[Judgement]:
    """Judge the reads of an engine, those of its start included, by the oracles of buffers.

    A read is a step `forward` of a trace, `profile` in the start and `replay` where it was replayed: each
    ends with a clear.  What was embedded before it is a `set`, of the requests whose rows it has.
    """
    if not steps:
        return [Judgement(rule, Verdict.ERROR, detail="no read of the buffer was seen") for rule in JUDGED]
    played: list[Step] = []
    seen: list[StepFacts] = []
    for number, step in enumerate([*facts.start_steps, *steps]):
        if step.spans:
            owners = "+".join(share.name for share in _shares(step) if share.images)
            played.append(Step(Op.SET, step.tokens or 0, request=owners or None, spans=step.spans))
            seen.append(StepFacts(str(played[-1]), facts.capacity, content=step.content))
        op = Op.REPLAY if step.replayed else Op.FORWARD
        played.append(Step(Op.PROFILE if number < len(facts.start_steps) else op, step.asked))
        seen.append(StepFacts(str(played[-1]), facts.capacity, answer=step.answer, tokens=step.tokens or 0))
    model = order.model
    buffer = source_buffer("vllm", facts.vllm, f"vllm {facts.vllm}", model.model_class)
    case = Case(model.family, buffer, Trace(facts.capacity, tuple(played)), ArmSpec())
    observation = Observation("float32", "cpu", facts.levels, facts.hidden, facts.torch, tuple(seen))
    return judge_all(ObservedCase(case, observation), JUDGED)


_ROWS = "rows"


def judge_structure(facts: StartFacts, steps: Sequence[LiveStep]) -> Judgement:
    """Judge R1: every read returns all levels, also those of the start, where nothing is set."""
    seen = [*facts.start_steps, *steps]
    none = [number for number, step in enumerate(seen, 1) if not step.answered]
    if not seen:
        return Judgement(Rule.STRUCTURE, Verdict.ERROR, detail="no read of the buffer was seen")
    when = "in the profile run" if none and none[0] <= len(facts.start_steps) else "while serving"
    detail = f"get answers None {when}, {len(none)} of {len(seen)} reads" if none else f"{len(seen)} reads"
    verdict = Verdict.FAIL if none else Verdict.PASS
    shape = FaultKind.NONE if none else None
    return Judgement(Rule.STRUCTURE, verdict, float(len(none)), 0.0, "reads", detail, shape=shape)


def judge_rows(steps: Sequence[LiveStep]) -> list[Judgement]:
    """Judge R2, R3 and R5: the rows of a step are its own, and zeros where it has none.

    A row of an earlier payload is R3 where a later payload replaced that, else R5: each step of an engine
    clears behind itself.  A row of no payload is R2.  Rows behind the tokens are reported as padding.
    """
    if not steps:
        return [Judgement(rule, Verdict.ERROR, detail="no step was seen") for rule in _RULES]
    broken: dict[Rule, list[tuple[int, LiveStep]]] = {rule: [] for rule in _RULES}
    for number, step in enumerate(steps):
        for rule in _broken_by(number, step, steps):
            broken[rule].append((number, step))
    return [_judgement(rule, broken[rule], len(steps)) for rule in _RULES]


_RULES = (Rule.BOUNDARY, Rule.FRESHNESS, Rule.CLEAR)


def _broken_by(number: int, step: LiveStep, steps: Sequence[LiveStep]) -> set[Rule]:
    broken = {_rule_of(number, origin, steps) for _, origin in step.origins}
    short = step.answered and step.rows != step.asked
    lost = not step.answered and step.wrong > 0
    return broken | ({Rule.BOUNDARY} if short or lost else set())


def _rule_of(number: int, origin: int | None, steps: Sequence[LiveStep]) -> Rule:
    if origin is None or origin >= number:
        return Rule.BOUNDARY
    replaced = any(later.visual for later in steps[origin + 1 : number + 1])
    return Rule.FRESHNESS if replaced else Rule.CLEAR


def _judgement(rule: Rule, broken: Sequence[tuple[int, LiveStep]], steps: int) -> Judgement:
    if not broken:
        return Judgement(rule, Verdict.PASS, 0.0, 0.0, _ROWS, f"{steps} steps")
    real = sum(step.wrong for _, step in broken)
    padding = sum(step.padding for _, step in broken)
    number, first = broken[0]
    whose = ", ".join(_owners(first)) or "padding"
    detail = f"{len(broken)} of {steps} steps, first step {number + 1}: rows of {whose}"
    effect = Effect.OUTPUT if real else Effect.PADDING
    return Judgement(
        rule, Verdict.FAIL, float(real or padding), 0.0, _ROWS, detail, effect,
        tuple(position + 1 for position, _ in broken), _shape(rule, first),
    )  # fmt: skip


def _shape(rule: Rule, step: LiveStep) -> FaultKind:
    if rule is not Rule.BOUNDARY:
        return FaultKind.REPLACED if rule is Rule.FRESHNESS else FaultKind.CLEARED
    if not step.origins:
        return FaultKind.MISSING
    return FaultKind.NEVER_SET if step.origins[0][1] is None else FaultKind.LIVE


def _owners(step: LiveStep) -> Iterator[str]:
    """Yield the requests whose rows are wrong, as far as the step names them."""
    end, wrong = 0, [row for row, _ in step.origins]
    for name, tokens, _ in step.requests:
        begin, end = end, end + tokens
        if any(begin <= row < end for row in wrong):
            yield name


class _Share(NamedTuple):
    """The rows of one request in a step: `images` ranges of them have a payload, `visual` rows in all."""

    name: str
    prefill: bool
    images: int
    visual: int


def missing_proofs(schedule: Schedule, replay: ReplayMode | None, served: ServedSchedule) -> list[str]:
    """Return what was not seen while a schedule was served, and had to be, each in a few words."""
    wanted = [*schedule.proofs]
    if replay is not None and schedule.proofs:
        wanted.append(Aim.REPLAYED)
    return [proof.value for proof in wanted if not _SEEN[proof](schedule, served)]


def proved(judgements: Iterable[Judgement], missing: Sequence[str]) -> list[Judgement]:
    """Return judgements where no PASS is left if a proof is missing; what is broken stays broken."""
    if not missing:
        return list(judgements)
    why = f"not measured: {' and '.join(missing)}"
    return [
        replace(judgement, verdict=Verdict.ERROR, detail=f"{why}; {judgement.detail}")
        if judgement.verdict is Verdict.PASS
        else judgement
        for judgement in judgements
    ]


def _shares(step: LiveStep) -> Iterator[_Share]:
    end = 0
    for name, tokens, prefill in step.requests:
        begin, end = end, end + tokens
        images = sum(begin <= first < end for first, _ in step.spans)
        visual = sum(max(0, min(end, last) - max(begin, first)) for first, last in step.spans)
        yield _Share(name, prefill, images, visual)


def _prefills(step: LiveStep) -> int:
    return sum(prefill for _, _, prefill in step.requests)


def _together(_: Schedule, served: ServedSchedule) -> bool:
    return any(_prefills(step) > 1 for step in served.steps)


def _beside_decodes(_: Schedule, served: ServedSchedule) -> bool:
    return any(0 < _prefills(step) < len(step.requests) for step in served.steps)


def _chunked(_: Schedule, served: ServedSchedule) -> bool:
    names = [name for step in served.steps for name, _, prefill in step.requests if prefill]
    return len(set(names)) < len(names)


def _split(schedule: Schedule, served: ServedSchedule) -> bool:
    """Return whether one image was split: more visual steps of a request than it has images."""
    images = {request.name: max(len(request.images), 1) for request in schedule.requests if request.is_visual}
    visual = [share.name for step in served.steps for share in _shares(step) if share.images]
    return any(visual.count(name) > most for name, most in images.items())


def _one_token(_: Schedule, served: ServedSchedule) -> bool:
    return any(step.is_visual_decode for step in served.steps)


def _text_after(schedule: Schedule, served: ServedSchedule) -> bool:
    """Return whether a text request began after the last visual step, during or after the image's decodes."""
    texts = {request.name for request in schedule.requests if not request.is_visual}
    visual = [number for number, step in enumerate(served.steps) if step.visual]
    later = served.steps[visual[-1] + 1 :] if visual else ()
    return any(prefill and name in texts for step in later for name, _, prefill in step.requests)


def _live_after_replay(_: Schedule, served: ServedSchedule) -> bool:
    """Return whether a prefill ran in Python behind a visual step that ran."""
    first = next((number for number, step in enumerate(served.steps) if step.visual), None)
    later = served.steps[first + 1 :] if first is not None else ()
    return any(not step.replayed and _prefills(step) for step in later)


def _several(_: Schedule, served: ServedSchedule) -> bool:
    return any(share.images > 1 for step in served.steps for share in _shares(step))


def _video(schedule: Schedule, served: ServedSchedule) -> bool:
    videos = {request.name for request in schedule.requests if request.frames}
    return any(share.images and share.name in videos for step in served.steps for share in _shares(step))


def _half_cached(schedule: Schedule, served: ServedSchedule) -> bool:
    """Return whether a request read fewer visual rows, and some, than an equal one that came before it."""
    visual = {
        request: _rows_of_prefill(request.name, served) for request in schedule.requests if request.is_visual
    }
    pairs = [(request, other) for request in visual for other in visual if _same_prompt(request, other)]
    return any(
        0 < visual[other] < visual[request] for request, other in pairs if request.arrives < other.arrives
    )


def _same_prompt(request: EngineRequest, other: EngineRequest) -> bool:
    return (request.before, request.images, request.pixels) == (other.before, other.images, other.pixels)


def _rows_of_prefill(name: str, served: ServedSchedule) -> int:
    """Count the visual rows of a request before its first decode: one that is preempted reads them again."""
    shares = [share for step in served.steps for share in _shares(step) if share.name == name]
    return sum(share.visual for share in takewhile(lambda share: share.prefill, shares))


def _replayed(_: Schedule, served: ServedSchedule) -> bool:
    return any(step.replayed and step.visual for step in served.steps)


def _counted(count: str) -> Callable[[Schedule, ServedSchedule], bool]:
    """Return a proof by a count of the child half."""
    return lambda _, served: served.counts.get(count, 0) > 0


_SEEN: Mapping[Aim, Callable[[Schedule, ServedSchedule], bool]] = MappingProxyType(
    {
        Aim.TOGETHER: _together,
        Aim.BESIDE_DECODES: _beside_decodes,
        Aim.CHUNKED: _chunked,
        Aim.SPLIT: _split,
        Aim.ONE_TOKEN: _one_token,
        Aim.TEXT_AFTER: _text_after,
        Aim.LIVE_AFTER: _live_after_replay,
        Aim.SEVERAL: _several,
        Aim.VIDEO: _video,
        Aim.REPLAYED: _replayed,
        Aim.PREEMPTED: _counted("preemptions"),
        Aim.CACHED: _counted("cached tokens"),
        Aim.HALF_CACHED: _half_cached,
        Aim.DRAFTED: _counted("drafted tokens"),
        Aim.ABORTED: _counted("aborts in prefill"),
    }
)


@dataclass(frozen=True)
class EngineResult:
    """Rows about one thing that was asked of an engine; `seconds` of wall time.

    `name` is the schedule, or what was compared.  `met` are the distinct (dispatch, visual state) pairs.
    """

    name: str
    order: StartOrder
    rows: tuple[Row, ...]
    seconds: float
    replay: ReplayMode | None = None
    steps: int = 0
    replayed: int = 0
    visual_decodes: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    met: frozenset[tuple[str, str]] = frozenset()

    @property
    def broken(self) -> list[Row]:
        """The rows of broken rules."""
        return [row for row in self.rows if row.verdict in BROKEN]


@dataclass(frozen=True)
class RowMaker:
    """The parts of a row that all results of one engine share."""

    label: str
    order: StartOrder
    facts: StartFacts

    def rows(
        self, judgements: Iterable[Judgement], name: str, schedule: Schedule | None = None,
        replay: ReplayMode | None = None,
    ) -> tuple[Row, ...]:  # fmt: skip
        """Return the rows of judgements about a schedule, or about a comparison that is named."""
        reach = _reach(schedule, replay)
        made = [
            self._row(judgement, f"{name} {replay.name}" if replay else name, replay)
            for judgement in judgements
        ]
        return tuple(replace(row, reach=reach) if row.verdict in BROKEN else row for row in made)

    def _row(self, judgement: Judgement, name: str, replay: ReplayMode | None) -> Row:
        model, order = self.order.model, self.order
        return Row(
            engine="vllm", family=model.family, model_class=model.model_class, revision=self.label,
            source=self.label, arm=order.arm, regime=Regime.CAPTURED if replay else Regime.LIVE,
            backend=self.facts.backend, capture=replay.name if replay else "", dtype="float32",
            evidence=Evidence.EMULATED if replay else Evidence.ENGINE, torch=self.facts.torch,
            case=f"{model.family} {order.arm} {order.start} {name}", **judgement.columns,
        )  # fmt: skip


def _reach(schedule: Schedule | None, replay: ReplayMode | None) -> str:
    """Return what a user has to set for a schedule under a graph mode: both, or nothing."""
    flags = flags_of(schedule, replay)
    return f"{FLAG}{', '.join(flags)}" if flags else DEFAULT


def pairs_met(steps: Sequence[LiveStep]) -> frozenset[tuple[str, str]]:
    """Return the distinct pairs of a dispatch and a visual state: what this step and the one before carry."""
    pairs, before = set(), "nothing"
    for step in steps:
        now = _state(step)
        pairs.add((_dispatch(step), f"{now} after {before}"))
        before = now
    return frozenset(pairs)


def _dispatch(step: LiveStep) -> str:
    kinds = sorted({"prefill" if prefill else "decode" for _, _, prefill in step.requests})
    how = "replayed" if step.replayed else "live"
    return f"{how}, {'uniform' if step.uniform else 'mixed'} {'+'.join(kinds)}"


def _state(step: LiveStep) -> str:
    if not step.visual:
        return "text"
    return "visual" if step.visual == step.tokens else "visual and text"
