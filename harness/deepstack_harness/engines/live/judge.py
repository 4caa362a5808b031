"""Judge the tokens of a real engine, and what its steps read from the payload buffer.

- Log-probabilities are compared: a request by itself and among others, with and without the payload,
  compiled and eager.  `ORACLES` has what each comparison cannot see.  All of them judge R0: a user notices
  nothing else.
- What the steps read is judged by the oracles of buffers (`judge_steps`).
- A schedule names its proofs that it did what it is for: requests were preempted, an image was split, a
  draft was made.  Without one of them its rules were not put to the test, and a PASS becomes ERROR
  (`proved`).
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from types import MappingProxyType
from typing import NamedTuple

from deepstack_harness.contract.arm import ArmSpec
from deepstack_harness.contract.case import Case, source_buffer
from deepstack_harness.contract.observation import Observation, StepFacts
from deepstack_harness.contract.oracles.judge import judge_all
from deepstack_harness.contract.oracles.trace_audit import ObservedCase
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.tolerances import ENGINE_FLOOR, ENGINE_TIMES
from deepstack_harness.contract.trace import Op, Step, Trace
from deepstack_harness.contract.verdicts import BROKEN, Effect, FaultKind, Judgement, Row, Verdict
from deepstack_harness.engines.live.models import TinyModel
from deepstack_harness.engines.live.schedules import Aim, EngineRequest, ReplayMode, Schedule
from deepstack_harness.engines.live.session import (
    EngineAnswer,
    LiveStep,
    ServedSchedule,
    StartFacts,
    StartOrder,
)

UNIT = "log-probability"

Answers = Mapping[str, EngineAnswer]
"""By the names of their requests."""


ORACLES: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "alone": (
            "is the answer to a request the same alone and beside others?",
            "a fault that is there in both, such as a payload that is always missing (43602)",
        ),
        "sensitivity": (
            "does the answer change when the payload is taken away?",
            "a payload that arrives, and is wrong",
        ),
        "eager": (
            "does the compiled engine answer like the uncompiled one?",
            "a fault of the model class itself, which both have",
        ),
        "transformers": (
            "does the engine answer like transformers?",
            "everything after the first token of a request that is alone",
        ),
        "ledger": (
            "are the rows that a step reads those of its own visual embeddings?",
            (
                "what becomes of right rows afterwards, as in a compiled graph that never adds them (43602); "
                "R3, as each step ends with a clear; R6 to R11: addresses, dtypes, bad calls, ranks, kernels "
                "and graphs are not recorded"
            ),
        ),
    }
)
"""The oracles over a running engine by name: the question of each, and what it is blind to."""


def distance(answer: EngineAnswer, other: EngineAnswer) -> float:
    """Return the largest difference of log-probabilities, up to the first token that differs.

    After that token the two contexts are different.  A missing token, a missing figure and nan are infinite.
    """
    worst = 0.0
    for row, other_row, token, other_token in zip(
        answer.logprobs, other.logprobs, answer.tokens, other.tokens, strict=False
    ):
        if len(row) != len(other_row) or not row:
            return math.inf
        for value, other_value in zip(row, other_row, strict=True):
            if value == other_value:  # two of -inf among them, or of None: a token that both exclude
                continue
            apart = math.nan if value is None or other_value is None else abs(value - other_value)
            worst = max(worst, math.inf if math.isnan(apart) else apart)
        if token != other_token:
            return worst
    complete = len(answer.tokens) == len(other.tokens) == len(answer.logprobs) == len(other.logprobs)
    return worst if complete and answer.tokens else math.inf


def distances(answers: Answers, others: Answers) -> dict[str, float]:
    """Return how far the tokens of each request are from the other ones; infinite where there are none."""
    nothing = EngineAnswer((), ())
    return {name: distance(answer, others.get(name, nothing)) for name, answer in answers.items()}


def tolerance(noise: Mapping[str, float]) -> float:
    """Return the limit that follows from the distances of the same runs without a payload.

    Runs that differ by an infinite distance without a payload do not count.
    """
    finite = [value for value in noise.values() if math.isfinite(value)]
    return max(ENGINE_FLOOR, ENGINE_TIMES * max(finite, default=0.0))


def judge_distances(
    by_request: Mapping[str, float], limit: float, comparison: str, *, equal: bool = True
) -> Judgement:
    """Judge that all requests are equal, or that all differ, by the one that is nearest to failing."""
    if not by_request:
        return Judgement(Rule.OUTPUT, Verdict.ERROR, detail=f"{comparison}: there is nothing to compare")
    value = max(by_request.values()) if equal else min(by_request.values())
    wrong = sorted(name for name, apart in by_request.items() if (apart > limit) == equal)
    if not wrong:
        detail = f"{comparison}: {'equal' if equal else 'the payload counts'}"
        return Judgement(Rule.OUTPUT, Verdict.PASS, value, limit, UNIT, detail)
    names = ", ".join(wrong)
    detail = f"{comparison}: {f'{names} off' if equal else f'no influence on {names}'}"
    shape = FaultKind.OUTPUT if equal else FaultKind.NO_EFFECT
    return Judgement(Rule.OUTPUT, Verdict.FAIL, value, limit, UNIT, detail, Effect.OUTPUT, shape=shape)


JUDGED = (Rule.STRUCTURE, Rule.BOUNDARY, Rule.FRESHNESS, Rule.CAPACITY, Rule.CLEAR)
"""The rules of buffers that a row which was read may break."""


def judge_steps(
    model: TinyModel, facts: StartFacts, steps: Sequence[LiveStep], rules: Sequence[Rule] = JUDGED
) -> list[Judgement]:
    """Judge what an engine read, in its start too, by the oracles of buffers.

    Each read is a step of a trace: `forward`, `profile` in the start, or `replay`; all of them clear.  What
    was embedded before it is a `set`, of the requests whose visual rows it has; a start embeds no such row.
    """
    if not steps:
        return [Judgement(rule, Verdict.ERROR, detail="no read of the buffer was seen") for rule in rules]
    trace: list[Step] = []
    seen: list[StepFacts] = []
    for number, step in enumerate([*facts.start_steps, *steps]):
        if step.spans:
            owners = "+".join(share.name for share in _shares(step) if share.images)
            trace.append(Step(Op.SET, step.tokens or 0, request=owners or None, spans=step.spans))
            seen.append(StepFacts(str(trace[-1]), facts.capacity, content=step.content))
        served = Op.REPLAY if step.replayed else Op.FORWARD
        trace.append(Step(Op.PROFILE if number < len(facts.start_steps) else served, step.asked))
        seen.append(StepFacts(str(trace[-1]), facts.capacity, answer=step.answer, tokens=step.tokens or 0))
    buffer = source_buffer("vllm", facts.vllm, f"vllm {facts.vllm}", model.model_class)
    case = Case(model.family, buffer, Trace(facts.capacity, tuple(trace)), ArmSpec())
    observation = Observation("float32", "cpu", facts.levels, facts.hidden, facts.torch, tuple(seen))
    return judge_all(ObservedCase(case, observation), rules)


class _Share(NamedTuple):
    """The rows of one request in a step: `images` ranges of them have a payload, `visual` rows in all."""

    name: str
    prefill: bool
    images: int
    visual: int


def _shares(step: LiveStep) -> Iterator[_Share]:
    end = 0
    for name, tokens, prefill in step.requests:
        begin, end = end, end + tokens
        images = sum(begin <= first < end for first, _ in step.spans)
        visual = sum(max(0, min(end, last) - max(begin, first)) for first, last in step.spans)
        yield _Share(name, prefill, images, visual)


def missing_proofs(schedule: Schedule, replay: ReplayMode | None, served: ServedSchedule) -> list[str]:
    """Return what was not seen while a schedule was served, and had to be, each in a few words."""
    wanted = [*schedule.proofs, *([Aim.REPLAYED] if replay is not None and schedule.proofs else [])]
    steps = [(step, list(_shares(step))) for step in served.steps]
    shares = [share for _, of_step in steps for share in of_step]
    prefills = [share.name for share in shares if share.prefill]
    beginning = [sum(share.prefill for share in of_step) for _, of_step in steps]
    visual = [number for number, (step, _) in enumerate(steps) if step.spans]
    after_first, after_last = (steps[visual[end] + 1 :] if visual else [] for end in (0, -1))
    with_image = [share.name for share in shares if share.images]
    most = {request.name: max(len(request.images), 1) for request in schedule.requests if request.is_visual}
    texts = {request.name for request in schedule.requests if not request.is_visual}
    counted = {
        Aim.PREEMPTED: "preemptions", Aim.CACHED: "cached tokens", Aim.DRAFTED: "drafted tokens",
        Aim.ABORTED: "aborts in prefill",
    }  # fmt: skip
    seen = {
        **{aim: served.counts.get(count, 0) > 0 for aim, count in counted.items()},
        Aim.TOGETHER: any(number > 1 for number in beginning),
        Aim.BESIDE_DECODES: any(
            0 < number < len(of_step) for number, (_, of_step) in zip(beginning, steps, strict=True)
        ),
        Aim.CHUNKED: len(set(prefills)) < len(prefills),
        # More visual steps of a request than it has images.
        Aim.SPLIT: any(with_image.count(name) > images for name, images in most.items()),
        Aim.ONE_TOKEN: any(step.is_visual_decode for step, _ in steps),
        # During the decodes of the image, or later.
        Aim.TEXT_AFTER: any(
            share.prefill and share.name in texts for _, of_step in after_last for share in of_step
        ),
        Aim.LIVE_AFTER: any(
            not step.replayed and any(share.prefill for share in of_step) for step, of_step in after_first
        ),
        Aim.SEVERAL: any(share.images > 1 for share in shares),
        Aim.VIDEO: any(request.frames and request.name in with_image for request in schedule.requests),
        Aim.HALF_CACHED: _is_half_cached(schedule, shares),
        Aim.REPLAYED: any(step.replayed and step.spans for step, _ in steps),
    }
    return [proof.value for proof in wanted if not seen[proof]]


def _is_half_cached(schedule: Schedule, shares: Sequence[_Share]) -> bool:
    """Return whether a request read fewer visual rows, and some, than an equal one that came before it.

    Rows before its first decode count: a request that is preempted reads them again.
    """
    read: dict[EngineRequest, int] = {}
    for request in (request for request in schedule.requests if request.is_visual):
        own = (share for share in shares if share.name == request.name)
        read[request] = sum(share.visual for share in takewhile(lambda share: share.prefill, own))
    return any(
        0 < read[later] < read[first]
        for first in read
        for later in read
        if first.arrives < later.arrives
        if (first.before, first.images, first.pixels) == (later.before, later.images, later.pixels)
    )


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


@dataclass(frozen=True)
class EngineResult:
    """Rows about one schedule or comparison on an engine; `seconds` of wall time.

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


def pairs_met(steps: Sequence[LiveStep]) -> frozenset[tuple[str, str]]:
    """Return the distinct pairs of a dispatch and a visual state: what this step and the one before carry."""
    pairs, before = set(), "nothing"
    for step in steps:
        kinds = "+".join(sorted({"prefill" if prefill else "decode" for _, _, prefill in step.requests}))
        how = f"{'replayed' if step.replayed else 'live'}, {'uniform' if step.uniform else 'mixed'} {kinds}"
        now = "text" if not step.spans else "visual" if step.visual == step.tokens else "visual and text"
        pairs.add((how, f"{now} after {before}"))
        before = now
    return frozenset(pairs)
