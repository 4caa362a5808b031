"""Verdicts about a real engine: tokens compared, rows that steps read, and proofs of schedules."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from deepstack_harness.contract.observation import Answer, RowRange
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.tolerances import ENGINE_FLOOR, ENGINE_TIMES
from deepstack_harness.contract.verdicts import Effect, Judgement, Verdict
from deepstack_harness.engines.live.judge import (
    ORACLES,
    distance,
    distances,
    judge_distances,
    judge_steps,
    missing_proofs,
    proved,
    tolerance,
)
from deepstack_harness.engines.live.models import model_of
from deepstack_harness.engines.live.schedules import REPLAY_MODES, SCHEDULES, Aim, EngineRequest, Schedule
from deepstack_harness.engines.live.session import EngineAnswer, LiveStep, ServedSchedule, StartFacts, checked

ONE = EngineAnswer((5, 6), ((-1.0, -2.0), (-0.5, -3.0)))


def answer(*figures: float | None, tokens: tuple[int, ...] = (5, 6)) -> EngineAnswer:
    pairs = (figures[:2], figures[2:])
    return EngineAnswer(tokens, tuple(tuple(pair) for pair in pairs if pair))


QWEN = model_of("qwen3_vl")
FACTS = StartFacts("0.32.0", torch="2.13.0", capacity=16, levels=2, hidden=8)


def step_with(
    payload: int | None, *, tokens: int = 4, image: bool = False, replayed: bool = False
) -> LiveStep:
    """Return a step that reads four rows of a payload (0: zeros, None: never set), and may have set it."""
    rows = tuple((RowRange(payload, level if payload else 0, 0, 4),) for level in range(2))
    answer = Answer("tensors", rows, (8, 8), ("float32",) * 2, ("cpu",) * 2)
    spans, content, name = (((0, 4),), rows, "a") if image else ((), None, "b")
    return LiveStep(4, answer, tokens, spans, content, ((name, tokens, True),), replayed=replayed)


FIRST_IMAGE, SECOND_IMAGE, TEXT_STEP = step_with(1, image=True), step_with(2, image=True), step_with(0)


def judged_steps(steps: Sequence[LiveStep], facts: StartFacts = FACTS) -> dict[Rule, Judgement]:
    return {said.rule: said for said in judge_steps(QWEN, facts, steps)}


def broken(steps: Sequence[LiveStep], facts: StartFacts = FACTS) -> set[Rule]:
    return {
        rule for rule, judgement in judged_steps(steps, facts).items() if judgement.verdict is Verdict.FAIL
    }


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
    return LiveStep(tokens, Answer("tensors"), tokens, spans, None, requests, uniform, replayed)


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
        # After the first token that differs the contexts are different.
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


def test_answers_are_compared_by_name_and_one_that_is_missing_is_infinitely_far() -> None:
    other = answer(-1.0, -2.25, -0.5, -3.0)
    assert distances({"a": ONE, "b": ONE}, {"b": ONE, "a": other}) == {"a": 0.25, "b": 0.0}
    assert distances({"a": ONE}, {}) == {"a": math.inf}


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
    judgement = judge_distances({"near": 1e-5, "far": 0.5}, ENGINE_FLOOR, "one and busy")
    assert (judgement.rule, judgement.verdict, judgement.value, judgement.effect) == (
        Rule.OUTPUT,
        Verdict.FAIL,
        0.5,
        Effect.OUTPUT,
    )
    assert "far" in judgement.detail
    assert "near" not in judgement.detail
    assert judge_distances({"near": 1e-5}, ENGINE_FLOOR, "one and busy").verdict is Verdict.PASS


def test_a_payload_without_influence_on_one_request_is_a_fault() -> None:
    by_request = {"blind": 0.0, "seeing": 1.5}
    judgement = judge_distances(by_request, ENGINE_FLOOR, "with and without payload", equal=False)
    assert (judgement.verdict, judgement.value) == (Verdict.FAIL, 0.0)
    assert "blind" in judgement.detail
    assert "seeing" not in judgement.detail
    good = judge_distances({"seeing": 1.5}, ENGINE_FLOOR, "with and without payload", equal=False)
    assert (good.verdict, good.detail) == (Verdict.PASS, "with and without payload: the payload counts")


@pytest.mark.parametrize("equal", [True, False])
def test_nothing_to_compare_is_no_agreement(equal: bool) -> None:
    assert judge_distances({}, ENGINE_FLOOR, "x", equal=equal).verdict is Verdict.ERROR


def test_every_oracle_states_what_it_cannot_see() -> None:
    assert all(unseen and question.endswith("?") for question, unseen in ORACLES.values())
    assert set(ORACLES) == {"alone", "sensitivity", "eager", "transformers", "ledger"}


def test_right_rows_break_nothing_and_what_nothing_tested_is_reported() -> None:
    said = judged_steps([FIRST_IMAGE, TEXT_STEP, SECOND_IMAGE])
    tested = {Rule.STRUCTURE, Rule.BOUNDARY, Rule.CLEAR}
    assert {rule for rule, judged in said.items() if judged.verdict is Verdict.PASS} == tested
    others = [said[rule] for rule in (Rule.FRESHNESS, Rule.CAPACITY)]
    assert all(judged.verdict is Verdict.SKIP and judged.detail for judged in others)
    assert judged_steps([FIRST_IMAGE])[Rule.CLEAR].verdict is Verdict.SKIP


def test_a_row_that_was_cleared_is_r5_and_names_its_request() -> None:
    steps = [FIRST_IMAGE, step_with(1, replayed=True)]
    judgement = judged_steps(steps)[Rule.CLEAR]
    assert (judgement.verdict, judgement.value, judgement.effect, judgement.steps) == (
        Verdict.FAIL,
        8.0,
        Effect.OUTPUT,
        (3,),
    )
    assert judgement.detail.startswith("step 3 'replay 4'")
    assert "payload 1 (request a, cleared at step 2)" in judgement.detail
    # Each step clears, so what another payload replaced was cleared before.
    assert broken(steps) == broken([FIRST_IMAGE, SECOND_IMAGE, step_with(1)]) == {Rule.CLEAR}


def test_a_row_that_nobody_set_is_r2_in_the_start_too() -> None:
    assert broken([FIRST_IMAGE, step_with(None)]) == {Rule.BOUNDARY}
    dirty = replace(FACTS, start_steps=(step_with(None),))
    assert judged_steps([TEXT_STEP], dirty)[Rule.BOUNDARY].detail.startswith("step 1 'profile 4'")


def test_rows_after_the_tokens_are_padding() -> None:
    judgement = judged_steps([FIRST_IMAGE, step_with(1, tokens=0)])[Rule.CLEAR]
    assert (judgement.verdict, judgement.effect) == (Verdict.FAIL, Effect.PADDING)


def test_no_step_is_no_pass() -> None:
    assert {judgement.verdict for judgement in judge_steps(QWEN, FACTS, ())} == {Verdict.ERROR}


RECORDED = Path(__file__).with_name("recorded_reads.jsonl")
"""What sessions of vllm 0.32.0 read, by families, arms and schedules; one has the methods of 0.22.1."""
BREAKS = {
    "qwen3_vl engine/eager plain text_after_image live": set(),
    "qwen3_vl engine/eager plain text_after_image full": {Rule.CLEAR},
    "granite4_vision engine/eager plain long_texts_after_image full_32": {Rule.CLEAR},
    "moss_audio engine/compile plain text_after_image live": {Rule.STRUCTURE},
    "qwen3_vl engine/eager plain vllm==0.22.1 text_after_image full": {Rule.STRUCTURE},
}


@pytest.mark.parametrize("line", RECORDED.read_bytes().splitlines())
def test_what_real_sessions_read_breaks_the_same_rules_as_when_they_were_recorded(line: bytes) -> None:
    record = msgspec.json.decode(line)
    facts, steps = checked(record["facts"], StartFacts), checked(record["steps"], tuple[LiveStep, ...])
    assert broken(steps, facts) == BREAKS[record["name"]]


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
