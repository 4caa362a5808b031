"""Answers of an engine beside each other: equal up to the first token that differs, never by nan."""

import math

import pytest

from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.verdicts import Effect, Verdict
from deepstack_harness.live_engine.answers import (
    FLOOR,
    ORACLES,
    TIMES,
    distance,
    distances,
    judge_different,
    judge_equal,
    tolerance,
)
from deepstack_harness.live_engine.facts import EngineAnswer, ServedSchedule

ONE = EngineAnswer((5, 6), ((-1.0, -2.0), (-0.5, -3.0)))


def answer(*figures: float | None, tokens: tuple[int, ...] = (5, 6)) -> EngineAnswer:
    pairs = (figures[:2], figures[2:])
    return EngineAnswer(tokens, tuple(tuple(pair) for pair in pairs if pair))


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (ONE, 0.0),
        (answer(-1.0, -2.25, -0.5, -3.0), 0.25),
        (answer(-1.0, -2.0, -0.5, -4.0), 1.0),
        # Behind the first token that differs the contexts are different.
        (answer(-1.0, -2.125, -9.0, -9.0, tokens=(7, 6)), 0.125),
        (answer(-1.0, math.nan, -0.5, -3.0), math.inf),
        (answer(-1.0, None, -0.5, -3.0), math.inf),
        (answer(-1.0, -2.0, tokens=(5,)), math.inf),
        (answer(-1.0, -2.0, -0.5, tokens=(5, 6)), math.inf),
        (EngineAnswer((), ()), math.inf),
    ],
)
def test_the_distance_of_two_answers(other: EngineAnswer, expected: float) -> None:
    assert distance(ONE, other) == expected
    assert distance(other, ONE) == expected


def test_tokens_that_both_exclude_are_equal() -> None:
    excluded = answer(-1.0, -math.inf, None, -3.0)
    assert distance(excluded, excluded) == 0.0
    assert distance(excluded, answer(-1.0, -2.0, None, -3.0)) == math.inf


def test_two_empty_answers_are_no_agreement() -> None:
    assert distance(EngineAnswer((), ()), EngineAnswer((), ())) == math.inf


def test_a_request_without_an_answer_is_infinitely_far() -> None:
    served = ServedSchedule({"a": ONE}, (), ())
    assert distances(served, ServedSchedule({}, (), ()), ["a"]) == {"a": math.inf}


@pytest.mark.parametrize(
    ("noise", "limit"),
    [({}, FLOOR), ({"a": 0.0}, FLOOR), ({"a": 0.01, "b": 0.002}, TIMES * 0.01), ({"a": math.inf}, FLOOR)],
)
def test_the_limit_follows_from_the_runs_without_a_payload(noise: dict[str, float], limit: float) -> None:
    assert tolerance(noise) == limit


def test_the_request_that_is_furthest_off_decides() -> None:
    said = judge_equal({"near": 1e-5, "far": 0.5}, FLOOR, "alone beside busy")
    assert (said.rule, said.verdict, said.value, said.effect) == (Rule.R0, Verdict.FAIL, 0.5, Effect.OUTPUT)
    assert "far" in said.detail
    assert "near" not in said.detail
    assert judge_equal({"near": 1e-5}, FLOOR, "alone beside busy").verdict is Verdict.PASS


def test_a_payload_without_influence_on_one_request_is_a_fault() -> None:
    said = judge_different({"blind": 0.0, "seeing": 1.5}, FLOOR, "with and without payload")
    assert (said.verdict, said.value) == (Verdict.FAIL, 0.0)
    assert "blind" in said.detail
    assert judge_different({"seeing": 1.5}, FLOOR, "with and without payload").verdict is Verdict.PASS


def test_nothing_to_compare_is_no_agreement() -> None:
    assert judge_equal({}, FLOOR, "x").verdict is Verdict.ERROR
    assert judge_different({}, FLOOR, "x").verdict is Verdict.ERROR


def test_every_oracle_says_what_it_cannot_see() -> None:
    assert all(oracle.cannot_see and oracle.question.endswith("?") for oracle in ORACLES.values())
    assert set(ORACLES) == {"alone", "sensitivity", "eager", "transformers", "ledger"}
