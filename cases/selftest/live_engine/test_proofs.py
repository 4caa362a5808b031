"""A schedule that did not do what it is for has measured nothing: no PASS is left."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.verdicts import Judgement, Verdict
from deepstack_harness.live_engine.facts import EngineAnswer, LiveStep, ServedSchedule
from deepstack_harness.live_engine.proofs import missing_proofs, proved
from deepstack_harness.live_engine.schedules import (
    REPLAY_MODES,
    SCHEDULES,
    Aim,
    EngineRequest,
    Schedule,
)

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
    good, bad = Judgement(Rule.R0, Verdict.PASS, detail="equal"), Judgement(Rule.R5, Verdict.FAIL, 3.0)
    assert proved([good, bad], []) == [good, bad]
    kept, left = proved([good, bad], ["no request was preempted", "no draft was verified"])
    assert (kept.verdict, left) == (Verdict.ERROR, bad)
    assert kept.detail == "not measured: no request was preempted and no draft was verified; equal"


def test_every_schedule_has_a_proof_and_every_proof_a_schedule() -> None:
    assert all(schedule.proofs for schedule in SCHEDULES.values())
    named = {proof for schedule in SCHEDULES.values() for proof in schedule.proofs}
    assert named == set(Aim) - {Aim.REPLAYED}
