"""A schedule that did not do what it is for has measured nothing: no PASS is left."""

from collections.abc import Mapping

import pytest

from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.verdicts import Judgement, Verdict
from deepstack_harness.live_engine.facts import EngineAnswer, LiveStep, ServedSchedule
from deepstack_harness.live_engine.proofs import missing_proofs, proved
from deepstack_harness.live_engine.schedules import REPLAY_MODES, SCHEDULES, EngineRequest, Proof, Schedule

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
    (Proof.TOGETHER, (IMAGE, TEXT), [step(("i", 9, True), ("t", 4, True))], [VISUAL, BEGIN]),
    (Proof.BESIDE_DECODES, (IMAGE, TEXT), [step(("i", 1, False), ("t", 4, True))], [VISUAL, BEGIN]),
    (Proof.CHUNKED, (TEXT,), [step(("t", 4, True)), step(("t", 2, True))], [BEGIN, step(("t", 1, False))]),
    (Proof.SPLIT, (IMAGE,), [VISUAL, VISUAL], [VISUAL, step(("i", 9, True))]),
    (Proof.SPLIT, (TWO,), [VISUAL, VISUAL, VISUAL], [VISUAL, VISUAL]),
    (Proof.SPLIT, (VIDEO,), [step(("v", 4, True), spans=((0, 4),))] * 2, [VISUAL, VISUAL]),
    (Proof.ONE_TOKEN, (IMAGE,), [step(("i", 1, True), spans=((0, 1),))], [VISUAL, DECODE]),
    (Proof.TEXT_AFTER, (IMAGE, TEXT), [VISUAL, DECODE, BEGIN], [BEGIN, VISUAL, DECODE]),
    (Proof.LIVE_AFTER, (IMAGE, TEXT), [VISUAL, DECODE, BEGIN], [VISUAL, step(("t", 4, True), replayed=True)]),
    (Proof.SEVERAL, (TWO,), [step(("i", 20, True), spans=((3, 7), (9, 13)))], [VISUAL, VISUAL]),
    (Proof.SEVERAL, (TWO,), [step(("i", 20, True), spans=((3, 7), (9, 13)))],
     [step(("i", 8, True), ("j", 8, True), spans=((3, 7), (9, 13)))]),
    (Proof.VIDEO, (VIDEO, IMAGE), [step(("v", 9, True), spans=((3, 7),))], [step(("v", 9, True)), VISUAL]),
    (Proof.VIDEO, (VIDEO, IMAGE), [step(("i", 3, True), ("v", 9, True), spans=((4, 7),))],
     [step(("i", 8, True), ("v", 9, True), spans=((4, 7),))]),
]  # fmt: skip


@pytest.mark.parametrize(("proof", "requests", "seen", "not_seen"), SEEN)
def test_a_proof_is_what_was_seen(
    proof: Proof, requests: tuple[EngineRequest, ...], seen: list[LiveStep], not_seen: list[LiveStep]
) -> None:
    schedule = Schedule("one", "one", requests, proofs=(proof,))
    assert missing_proofs(schedule, None, served(*seen)) == []
    assert missing_proofs(schedule, None, served(*not_seen)) == [proof.value]
    assert missing_proofs(schedule, None, served()) == [proof.value]


@pytest.mark.parametrize(
    ("proof", "count"),
    [
        (Proof.PREEMPTED, "preemptions"),
        (Proof.CACHED, "cached tokens"),
        (Proof.DRAFTED, "drafted tokens"),
        (Proof.ABORTED, "aborts in prefill"),
    ],
)
def test_a_count_of_the_engine_is_a_proof(proof: Proof, count: str) -> None:
    schedule = Schedule("one", "one", (IMAGE,), proofs=(proof,))
    assert missing_proofs(schedule, None, served(VISUAL, counts={count: 1})) == []
    for counts in ({}, {count: 0}, {"another": 1}):
        assert missing_proofs(schedule, None, served(VISUAL, counts=counts)) == [proof.value]


def test_a_graph_mode_has_to_replay_a_visual_step() -> None:
    schedule = Schedule("one", "one", (IMAGE, TEXT), proofs=(Proof.TEXT_AFTER,))
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
    assert named == set(Proof) - {Proof.REPLAYED}
