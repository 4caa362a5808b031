"""Verdicts about a real engine: answers compared, rows that steps read, and proofs of schedules."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.tolerances import ENGINE_FLOOR, ENGINE_TIMES
from deepstack_harness.contract.verdicts import Effect, Judgement, Verdict
from deepstack_harness.engines.live.judge import (
    ORACLES,
    distance,
    distances,
    judge_different,
    judge_equal,
    judge_rows,
    judge_structure,
    missing_proofs,
    proved,
    tolerance,
)
from deepstack_harness.engines.live.schedules import REPLAY_MODES, SCHEDULES, Aim, EngineRequest, Schedule
from deepstack_harness.engines.live.session import EngineAnswer, LiveStep, ServedSchedule, StartFacts

ONE = EngineAnswer((5, 6), ((-1.0, -2.0), (-0.5, -3.0)))


def answer(*figures: float | None, tokens: tuple[int, ...] = (5, 6)) -> EngineAnswer:
    pairs = (figures[:2], figures[2:])
    return EngineAnswer(tokens, tuple(tuple(pair) for pair in pairs if pair))


TEXT_STEP = LiveStep(4, answered=True, tokens=4, rows=4)
VISUAL_STEP = LiveStep(4, answered=True, tokens=4, visual=4, rows=4)


def judged_steps(steps: Sequence[LiveStep]) -> dict[Rule, Judgement]:
    return {said.rule: said for said in judge_rows(steps)}


def stale(origin: int | None, *, wrong: int = 1, padding: int = 0, visual: int = 0) -> LiveStep:
    return LiveStep(
        4, answered=True, tokens=4, visual=visual, rows=4, wrong=wrong, padding=padding,
        origins=((1, origin),), requests=(("a", 1, False), ("b", 3, True)),
    )  # fmt: skip


def broken(steps: Sequence[LiveStep]) -> set[Rule]:
    return {rule for rule, said in judged_steps(steps).items() if said.verdict is Verdict.FAIL}


FULL = REPLAY_MODES["full"]
IMAGE, TWO = EngineRequest("i", images=(0,)), EngineRequest("i", images=(0, 1))
TEXT, VIDEO = EngineRequest("t"), EngineRequest("v", frames=(0, 1))
Batch = tuple[tuple[str, int, bool], ...]


def step(
    *requests: tuple[str, int, bool], spans: tuple[tuple[int, int], ...] = (), replayed: bool = False
) -> LiveStep:
    """Return a step of (request, tokens, in prefill), with its visual rows."""
    tokens = sum(count for _, count, _ in requests)
    uniform = all(count == 1 for _, count, _ in requests)
    visual = sum(end - first for first, end in spans)
    return LiveStep(tokens, answered=True, tokens=tokens, visual=visual, spans=spans, rows=tokens,
                    requests=requests, uniform=uniform, replayed=replayed)  # fmt: skip


def served(*steps: LiveStep, counts: Mapping[str, int] | None = None) -> ServedSchedule:
    return ServedSchedule({"i": EngineAnswer((1,), ((0.0,),))}, steps, (), counts or {})


VISUAL = step(("i", 9, True), spans=((3, 7),))
DECODE, BEGIN = step(("i", 1, False)), step(("t", 4, True))

SEEN = [
    (Aim.TOGETHER, (IMAGE, TEXT), [step(("i", 9, True), ("t", 4, True))], [VISUAL, BEGIN]),
    (Aim.BESIDE_DECODES, (IMAGE, TEXT), [step(("i", 1, False), ("t", 4, True))], [VISUAL, BEGIN]),
    (Aim.CHUNKED, (TEXT,), [step(("t", 4, True)), step(("t", 2, True))], [BEGIN, step(("t", 1, False))]),
    (Aim.SPLIT, (IMAGE,), [VISUAL, VISUAL], [VISUAL, step(("i", 9, True))]),
    (Aim.SPLIT, (TWO,), [VISUAL, VISUAL, VISUAL], [VISUAL, VISUAL]),
    (Aim.SPLIT, (VIDEO,), [step(("v", 4, True), spans=((0, 4),))] * 2, [VISUAL, VISUAL]),
    (Aim.ONE_TOKEN, (IMAGE,), [step(("i", 1, True), spans=((0, 1),))], [VISUAL, DECODE]),
    (Aim.TEXT_AFTER, (IMAGE, TEXT), [VISUAL, DECODE, BEGIN], [BEGIN, VISUAL, DECODE]),
    (Aim.LIVE_AFTER, (IMAGE, TEXT), [VISUAL, DECODE, BEGIN], [VISUAL, step(("t", 4, True), replayed=True)]),
    (Aim.SEVERAL, (TWO,), [step(("i", 20, True), spans=((3, 7), (9, 13)))], [VISUAL, VISUAL]),
    (Aim.SEVERAL, (TWO,), [step(("i", 20, True), spans=((3, 7), (9, 13)))],
     [step(("i", 8, True), ("j", 8, True), spans=((3, 7), (9, 13)))]),
    (Aim.VIDEO, (VIDEO, IMAGE), [step(("v", 9, True), spans=((3, 7),))], [step(("v", 9, True)), VISUAL]),
    (Aim.VIDEO, (VIDEO, IMAGE), [step(("i", 3, True), ("v", 9, True), spans=((4, 7),))],
     [step(("i", 8, True), ("v", 9, True), spans=((4, 7),))]),
]  # fmt: skip


FIRST = EngineRequest("a", before="more", images=(3,))
AGAIN = replace(FIRST, name="b", arrives=6)
WHOLE = step(("a", 9, True), spans=((3, 7),))


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
    [
        ({}, ENGINE_FLOOR),
        ({"a": 0.0}, ENGINE_FLOOR),
        ({"a": 0.01, "b": 0.002}, ENGINE_TIMES * 0.01),
        ({"a": math.inf}, ENGINE_FLOOR),
    ],
)
def test_the_limit_follows_from_the_runs_without_a_payload(noise: dict[str, float], limit: float) -> None:
    assert tolerance(noise) == limit


def test_the_request_that_is_furthest_off_decides() -> None:
    said = judge_equal({"near": 1e-5, "far": 0.5}, ENGINE_FLOOR, "one and busy")
    assert (said.rule, said.verdict, said.value, said.effect) == (
        Rule.OUTPUT,
        Verdict.FAIL,
        0.5,
        Effect.OUTPUT,
    )
    assert "far" in said.detail
    assert "near" not in said.detail
    assert judge_equal({"near": 1e-5}, ENGINE_FLOOR, "one and busy").verdict is Verdict.PASS


def test_a_payload_without_influence_on_one_request_is_a_fault() -> None:
    said = judge_different({"blind": 0.0, "seeing": 1.5}, ENGINE_FLOOR, "with and without payload")
    assert (said.verdict, said.value) == (Verdict.FAIL, 0.0)
    assert "blind" in said.detail
    assert judge_different({"seeing": 1.5}, ENGINE_FLOOR, "with and without payload").verdict is Verdict.PASS


def test_nothing_to_compare_is_no_agreement() -> None:
    assert judge_equal({}, ENGINE_FLOOR, "x").verdict is Verdict.ERROR
    assert judge_different({}, ENGINE_FLOOR, "x").verdict is Verdict.ERROR


def test_every_oracle_says_what_it_cannot_see() -> None:
    assert all(oracle.cannot_see and oracle.question.endswith("?") for oracle in ORACLES.values())
    assert set(ORACLES) == {"alone", "sensitivity", "eager", "transformers", "ledger"}


def test_right_rows_break_nothing() -> None:
    assert broken([VISUAL_STEP, TEXT_STEP, VISUAL_STEP]) == set()


def test_a_row_that_was_cleared_is_r5_and_names_its_request() -> None:
    said = judged_steps([VISUAL_STEP, stale(0)])[Rule.CLEAR]
    assert (said.verdict, said.value, said.effect, said.steps) == (Verdict.FAIL, 1.0, Effect.OUTPUT, (2,))
    assert said.detail.endswith("rows of b")
    assert broken([VISUAL_STEP, stale(0)]) == {Rule.CLEAR}


@pytest.mark.parametrize("steps", [[VISUAL_STEP, VISUAL_STEP, stale(0)], [VISUAL_STEP, stale(0, visual=2)]])
def test_a_row_that_a_later_payload_replaced_is_r3(steps: Sequence[LiveStep]) -> None:
    assert broken(steps) == {Rule.FRESHNESS}


@pytest.mark.parametrize("origin", [None, 1])
def test_a_row_of_no_earlier_payload_is_r2(origin: int | None) -> None:
    assert broken([VISUAL_STEP, stale(origin)]) == {Rule.BOUNDARY}


def test_rows_behind_the_tokens_are_padding() -> None:
    said = judged_steps([VISUAL_STEP, stale(0, wrong=0, padding=1)])[Rule.CLEAR]
    assert (said.verdict, said.effect) == (Verdict.FAIL, Effect.PADDING)


def test_a_short_answer_and_a_lost_payload_are_r2() -> None:
    assert broken([LiveStep(4, answered=True, tokens=4, rows=3)]) == {Rule.BOUNDARY}
    assert broken([LiveStep(4, answered=False, tokens=4, visual=4, wrong=4)]) == {Rule.BOUNDARY}


def test_no_step_is_no_pass() -> None:
    assert {said.verdict for said in judge_rows([])} == {Verdict.ERROR}
    assert judge_structure(StartFacts("0.32.0"), ()).verdict is Verdict.ERROR


def test_none_in_the_profile_run_is_r1() -> None:
    start = StartFacts("0.22.1", start_steps=(LiveStep(64, answered=False),))
    said = judge_structure(start, [VISUAL_STEP])
    assert (said.rule, said.verdict, said.value) == (Rule.STRUCTURE, Verdict.FAIL, 1.0)
    assert "profile run" in said.detail
    assert judge_structure(StartFacts("0.32.0"), [VISUAL_STEP]).verdict is Verdict.PASS


@pytest.mark.parametrize(
    ("second", "half"),
    [
        ([step(("b", 4, True), spans=((0, 2),))], True),
        ([step(("a", 1, False), ("b", 4, True), spans=((1, 3),))], True),
        ([step(("b", 9, True), spans=((3, 7),))], False),
        ([step(("b", 2, True))], False),
        # The second chunk has the rest; and a preempted request reads its image again.
        ([step(("b", 5, True), spans=((3, 5),)), step(("b", 4, True), spans=((0, 2),))], False),
        ([step(("b", 4, True), spans=((0, 2),)), step(("b", 1, False)), WHOLE], True),
    ],
)
def test_an_image_that_is_cached_in_part(second: list[LiveStep], half: bool) -> None:
    schedule = Schedule("one", "one", (FIRST, AGAIN), proofs=(Aim.HALF_CACHED,))
    assert (missing_proofs(schedule, None, served(WHOLE, *second)) == []) == half
    other = replace(schedule, requests=(FIRST, replace(AGAIN, images=(4,))))
    assert missing_proofs(other, None, served(WHOLE, *second)) == [Aim.HALF_CACHED.value]


@pytest.mark.parametrize(("proof", "requests", "seen", "not_seen"), SEEN)
def test_a_proof_is_what_was_seen(
    proof: Aim, requests: tuple[EngineRequest, ...], seen: list[LiveStep], not_seen: list[LiveStep]
) -> None:
    schedule = Schedule("one", "one", requests, proofs=(proof,))
    assert missing_proofs(schedule, None, served(*seen)) == []
    assert missing_proofs(schedule, None, served(*not_seen)) == [proof.value]
    assert missing_proofs(schedule, None, served()) == [proof.value]


@pytest.mark.parametrize(
    ("proof", "count"),
    [
        (Aim.PREEMPTED, "preemptions"),
        (Aim.CACHED, "cached tokens"),
        (Aim.DRAFTED, "drafted tokens"),
        (Aim.ABORTED, "aborts in prefill"),
    ],
)
def test_a_count_of_the_engine_is_a_proof(proof: Aim, count: str) -> None:
    schedule = Schedule("one", "one", (IMAGE,), proofs=(proof,))
    assert missing_proofs(schedule, None, served(VISUAL, counts={count: 1})) == []
    for counts in ({}, {count: 0}, {"another": 1}):
        assert missing_proofs(schedule, None, served(VISUAL, counts=counts)) == [proof.value]


def test_a_graph_mode_has_to_replay_a_visual_step() -> None:
    schedule = Schedule("one", "one", (IMAGE, TEXT), proofs=(Aim.TEXT_AFTER,))
    replayed = step(("i", 9, True), spans=((3, 7),), replayed=True)
    assert missing_proofs(schedule, FULL, served(replayed, BEGIN)) == []
    for steps in ((VISUAL, BEGIN), (VISUAL, step(("t", 4, True), replayed=True))):
        assert missing_proofs(schedule, FULL, served(*steps)) == ["no visual step was replayed"]
        assert missing_proofs(schedule, None, served(*steps)) == []


def test_a_drawn_schedule_has_nothing_to_prove() -> None:
    assert missing_proofs(Schedule("drawn", "drawn", (TEXT,)), FULL, served(BEGIN)) == []


def test_no_pass_is_left_where_a_proof_is_missing() -> None:
    good, bad = Judgement(Rule.OUTPUT, Verdict.PASS, detail="equal"), Judgement(Rule.CLEAR, Verdict.FAIL, 3.0)
    assert proved([good, bad], []) == [good, bad]
    kept, left = proved([good, bad], ["no request was preempted", "no draft was verified"])
    assert (kept.verdict, left) == (Verdict.ERROR, bad)
    assert kept.detail == "not measured: no request was preempted and no draft was verified; equal"


def test_every_schedule_has_a_proof_and_every_proof_a_schedule() -> None:
    assert all(schedule.proofs for schedule in SCHEDULES.values())
    named = {proof for schedule in SCHEDULES.values() for proof in schedule.proofs}
    assert named == set(Aim) - {Aim.REPLAYED}
