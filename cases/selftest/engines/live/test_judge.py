"""Verdicts about a real engine: answers compared, rows that steps read, and proofs of schedules."""

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
ZEROS = RowRange(0, 0, 0, 4)


def rows(*levels: tuple[RowRange, ...]) -> Answer:
    return Answer("tensors", levels, (8, 8), ("float32", "float32"), ("cpu", "cpu"))


def of(payload: int | None, first: int, count: int) -> Answer:
    """Return an answer of 4 rows, `count` of them from row `first` of a payload, and zeros behind these."""
    levels = (RowRange(payload, level if payload else 0, first, count) for level in range(2))
    return rows(*((level, *([ZEROS._replace(rows=4 - count)] if count < 4 else [])) for level in levels))


TEXT_ROWS = rows((ZEROS,), (ZEROS,))
TEXT_STEP = LiveStep(4, TEXT_ROWS, 4, requests=(("b", 4, True),))


def image_step(payload: int, answer: Answer | None = None) -> LiveStep:
    """Return a step with an image in all four rows, of the payload with this number."""
    given = of(payload, 0, 4)
    return LiveStep(4, answer or given, 4, ((0, 4),), given.rows, requests=(("a", 4, True),))


def read(answer: Answer, *, tokens: int = 4) -> LiveStep:
    """Return a step of text that reads this."""
    return LiveStep(4, answer, tokens, requests=(("b", tokens, True),))


def judged_steps(steps: Sequence[LiveStep], facts: StartFacts = FACTS) -> dict[Rule, Judgement]:
    return {said.rule: said for said in judge_steps(QWEN, facts, steps)}


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
    said = judge_distances({"near": 1e-5, "far": 0.5}, ENGINE_FLOOR, "one and busy")
    assert (said.rule, said.verdict, said.value, said.effect) == (
        Rule.OUTPUT,
        Verdict.FAIL,
        0.5,
        Effect.OUTPUT,
    )
    assert "far" in said.detail
    assert "near" not in said.detail
    assert judge_distances({"near": 1e-5}, ENGINE_FLOOR, "one and busy").verdict is Verdict.PASS


def test_a_payload_without_influence_on_one_request_is_a_fault() -> None:
    by_request = {"blind": 0.0, "seeing": 1.5}
    said = judge_distances(by_request, ENGINE_FLOOR, "with and without payload", equal=False)
    assert (said.verdict, said.value) == (Verdict.FAIL, 0.0)
    assert "blind" in said.detail
    assert "seeing" not in said.detail
    good = judge_distances({"seeing": 1.5}, ENGINE_FLOOR, "with and without payload", equal=False)
    assert (good.verdict, good.detail) == (Verdict.PASS, "with and without payload: the payload counts")


@pytest.mark.parametrize("equal", [True, False])
def test_nothing_to_compare_is_no_agreement(equal: bool) -> None:
    assert judge_distances({}, ENGINE_FLOOR, "x", equal=equal).verdict is Verdict.ERROR


def test_every_oracle_says_what_it_cannot_see() -> None:
    assert all(oracle.cannot_see and oracle.question.endswith("?") for oracle in ORACLES.values())
    assert set(ORACLES) == {"alone", "sensitivity", "eager", "transformers", "ledger"}


def test_right_rows_break_nothing_and_what_nothing_tested_is_said() -> None:
    said = judged_steps([image_step(1), TEXT_STEP, image_step(2)])
    assert {rule: judged.verdict for rule, judged in said.items()} == {
        Rule.STRUCTURE: Verdict.PASS,
        Rule.BOUNDARY: Verdict.PASS,
        Rule.FRESHNESS: Verdict.SKIP,
        Rule.CAPACITY: Verdict.SKIP,
        Rule.CLEAR: Verdict.PASS,
    }
    assert said[Rule.FRESHNESS].detail == "no row of a replaced payload could be read"
    assert judged_steps([image_step(1)])[Rule.CLEAR].verdict is Verdict.SKIP


def test_a_row_that_was_cleared_is_r5_and_names_its_request() -> None:
    steps = [image_step(1), read(of(1, 0, 1))]
    said = judged_steps(steps)[Rule.CLEAR]
    assert (said.verdict, said.value, said.effect, said.steps) == (Verdict.FAIL, 2.0, Effect.OUTPUT, (3,))
    assert "payload 1 (request a, cleared at step 2)" in said.detail
    assert broken(steps) == {Rule.CLEAR}
    # A later payload lay there: each step clears, so what it left was cleared as well.
    assert broken([image_step(1), image_step(2), read(of(1, 0, 1))]) == {Rule.CLEAR}
    assert broken([image_step(1), image_step(2, of(1, 0, 4))]) == {Rule.CLEAR}


@pytest.mark.parametrize(
    "steps",
    [
        [image_step(1), read(of(None, 0, 1))],  # nobody set it
        [image_step(1, of(1, 1, 3))],  # the own payload, moved by a row
        [image_step(1, TEXT_ROWS)],  # zeros in its place
        [read(rows((ZEROS._replace(rows=3),), (ZEROS._replace(rows=3),)))],  # a row too few
    ],
)
def test_a_row_that_no_earlier_payload_explains_is_r2(steps: Sequence[LiveStep]) -> None:
    assert broken(steps) == {Rule.BOUNDARY}


def test_rows_behind_the_tokens_are_padding() -> None:
    steps = [image_step(1), read(of(1, 0, 4), tokens=0)]
    assert judged_steps(steps)[Rule.CLEAR].effect is Effect.PADDING
    behind = rows(*(((ZEROS._replace(rows=2)), RowRange(1, level, 2, 2)) for level in range(2)))
    effects = [
        judged_steps([image_step(1), read(behind, tokens=tokens)])[Rule.CLEAR].effect for tokens in (2, 3)
    ]
    assert effects == [Effect.PADDING, Effect.OUTPUT]


def test_equal_rows_of_two_payloads_are_one_content() -> None:
    again = replace(image_step(2), content=of(1, 0, 4).rows, answer=of(1, 0, 4))
    assert broken([image_step(1), again]) == set()
    assert broken([image_step(1), again, read(of(1, 0, 1))]) == {Rule.CLEAR}


def test_a_replayed_step_and_the_rows_of_the_start_are_judged() -> None:
    stale = replace(read(of(1, 0, 4)), replayed=True)
    said = judged_steps([image_step(1), stale])[Rule.CLEAR]
    assert said.detail.startswith("step 3 'replay 4'")
    dirty = replace(FACTS, start_steps=(LiveStep(4, of(None, 0, 4)),))
    assert judged_steps([TEXT_STEP], dirty)[Rule.BOUNDARY].verdict is Verdict.FAIL


def test_no_step_is_no_pass() -> None:
    assert {said.verdict for said in judge_steps(QWEN, FACTS, ())} == {Verdict.ERROR}


def test_none_is_r1_in_the_profile_run_and_for_a_payload() -> None:
    start = replace(FACTS, start_steps=(LiveStep(16, Answer("none")),))
    said = judged_steps([image_step(1)], start)[Rule.STRUCTURE]
    assert (said.verdict, said.value, said.steps) == (Verdict.FAIL, 1.0, (1,))
    assert said.detail == "step 1 'profile 16' was answered with None, not with 2 tensors"
    assert broken([image_step(1, Answer("none"))]) == {Rule.STRUCTURE}


RECORDED = Path(__file__).with_name("recorded_reads.jsonl")
"""What sessions of vllm 0.32.0 read, by families, arms and schedules; one has the methods of 0.22.1."""
BREAKS = {
    "qwen3_vl engine/eager plain text_after_image live": set(),
    "qwen3_vl engine/eager plain text_after_image full": {Rule.CLEAR},
    "granite4_vision engine/eager plain long_texts_after_image full_32": {Rule.CLEAR},
    "moss_audio engine/compile plain text_after_image live": {Rule.STRUCTURE},
    "qwen3_vl engine/eager plain vllm==0.22.1 text_after_image full": {Rule.STRUCTURE},
}


def test_what_real_sessions_read_breaks_the_same_rules_as_on_the_day_they_were_recorded() -> None:
    found = {}
    for line in RECORDED.read_bytes().splitlines():
        record = msgspec.json.decode(line)
        facts = checked(record["facts"], StartFacts)
        steps = [checked(step, LiveStep) for step in record["steps"]]
        found[record["name"]] = {
            said.rule
            for said in judge_steps(model_of(record["family"]), facts, steps)
            if said.verdict is Verdict.FAIL
        }
    assert found == BREAKS


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
