"""Judge answers: alone against busy, with against without the payload, compiled against eager.

Each oracle says what it cannot see (`ORACLES`).  All of them judge R0: a user notices nothing but the answer.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.verdicts import Effect, Judgement, Verdict
from deepstack_harness.live_engine.facts import EngineAnswer, ServedSchedule

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


def distance(one: EngineAnswer, other: EngineAnswer) -> float:
    """Return the largest difference of log-probabilities, up to the first token that differs.

    Behind that token the two contexts are different.  A missing token, a missing figure and nan are infinite.
    """
    worst = 0.0
    for here, there, mine, theirs in zip(
        one.logprobs, other.logprobs, one.tokens, other.tokens, strict=False
    ):
        worst = max(worst, _largest(here, there))
        if mine != theirs:
            return worst
    complete = len(one.tokens) == len(other.tokens) == len(one.logprobs) == len(other.logprobs)
    return worst if complete and one.tokens else math.inf


def _largest(one: Sequence[float | None], other: Sequence[float | None]) -> float:
    """Return the largest difference of two rows; infinite where one has no figure, or one that is nan."""
    if len(one) != len(other) or not one:
        return math.inf
    differences = [_difference(here, there) for here, there in zip(one, other, strict=True)]
    return max(differences)


def _difference(one: float | None, other: float | None) -> float:
    if one is None or other is None:
        return 0.0 if one is other else math.inf
    if one == other:  # two of -inf among them: a token that both exclude
        return 0.0
    found = abs(one - other)
    return math.inf if math.isnan(found) else found


def distances(one: ServedSchedule, other: ServedSchedule, names: Iterable[str]) -> dict[str, float]:
    """Return the distance of each request's answers; infinite where one of both has none."""
    return {name: _distance_of(one.answers.get(name), other.answers.get(name)) for name in names}


def _distance_of(one: EngineAnswer | None, other: EngineAnswer | None) -> float:
    return math.inf if one is None or other is None else distance(one, other)


def tolerance(noise: Mapping[str, float]) -> float:
    """Return the limit that follows from the distances of the same runs without a payload.

    Runs that differ by an infinite distance without a payload say nothing: the limit is the smallest then.
    """
    finite = [value for value in noise.values() if math.isfinite(value)]
    return max(FLOOR, TIMES * max(finite, default=0.0))


def judge_equal(found: Mapping[str, float], limit: float, said: str) -> Judgement:
    """Judge that answers are equal: the request that is furthest off decides."""
    if not found:
        return Judgement(Rule.R0, Verdict.ERROR, detail=f"{said}: there is nothing to compare")
    name = max(found, key=lambda each: found[each])
    wrong = sorted(each for each, value in found.items() if value > limit)
    detail = f"{said}: {', '.join(wrong)} off" if wrong else f"{said}: equal"
    verdict = Verdict.FAIL if wrong else Verdict.PASS
    effect = Effect.OUTPUT if wrong else None
    return Judgement(Rule.R0, verdict, found[name], limit, UNIT, detail, effect)


def judge_different(found: Mapping[str, float], limit: float, said: str) -> Judgement:
    """Judge that answers differ by more than the limit: the request that is nearest decides."""
    if not found:
        return Judgement(Rule.R0, Verdict.ERROR, detail=f"{said}: there is nothing to compare")
    name = min(found, key=lambda each: found[each])
    same = sorted(each for each, value in found.items() if value <= limit)
    detail = f"{said}: no influence on {', '.join(same)}" if same else f"{said}: the payload counts"
    verdict = Verdict.FAIL if same else Verdict.PASS
    return Judgement(Rule.R0, verdict, found[name], limit, UNIT, detail, Effect.OUTPUT if same else None)
