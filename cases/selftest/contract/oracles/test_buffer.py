"""The oracles of a buffer: placement and addresses by hand, and what revisions break on whole traces."""

from dataclasses import replace

import msgspec
import pytest
import torch

from cases.selftest.contract.oracles.written_observations import (
    RIGHT,
    answer,
    forward,
    observed,
)
from cases.selftest.play.playing import broken, case_of, judge
from deepstack_harness.catalogue.buffers import buffer_named
from deepstack_harness.catalogue.plans import CAPTURE_ARM, CAPTURE_TRACES, CONTRACT_TRACES
from deepstack_harness.contract.arm import EAGER, ArmSpec
from deepstack_harness.contract.case import Case, registered
from deepstack_harness.contract.observation import NOT_FINITE, GraphUse, Observation, StepFacts
from deepstack_harness.contract.oracles.buffer import judge_address, judge_placement
from deepstack_harness.contract.oracles.judge import judge_all
from deepstack_harness.contract.oracles.trace_audit import ObservedCase
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.trace import Trace
from deepstack_harness.contract.verdicts import Judgement, Verdict
from deepstack_harness.models.reference import ReferenceBuffer
from deepstack_harness.play.model import Model
from deepstack_harness.play.observe import play


@pytest.mark.parametrize(
    ("dtype", "device"), [("float32", "cuda:0"), ("bfloat16", "cpu"), ("float32", "meta")]
)
def test_rows_elsewhere_or_in_another_dtype(dtype: str, device: str) -> None:
    case = Case("qwen3_vl", registered("reference"), Trace.parse("cap 16: get 16"), EAGER)
    judgement = judge_placement(
        ObservedCase(case, observed(StepFacts("get 16", 16, answer=answer(dtype, device))))
    )
    assert judgement.verdict is Verdict.FAIL
    assert dtype in judgement.detail
    assert device in judgement.detail


CAPTURED = Trace.parse("cap 16: capture 16; replay 16; get 16; get 16")


def addresses_of(*answers: tuple[int | None, int, int], trace: Trace = CAPTURED) -> Judgement:
    """Judge R6 where the steps of a trace have (generation, address, rows)."""
    steps = [
        StepFacts(str(step), 16, generation, answer(address=at, tokens=rows), graph_use=GraphUse())
        for step, (generation, at, rows) in zip(trace.steps, answers, strict=True)
    ]
    arm = ArmSpec.parse("eager/full")
    return judge_address(
        ObservedCase(Case("qwen3_vl", registered("reference"), trace, arm), observed(*steps))
    )


@pytest.mark.parametrize(
    ("last", "verdict"),
    [
        ((0, 64, 16), Verdict.PASS),
        ((0, 128, 16), Verdict.FAIL),
        ((1, 128, 16), Verdict.PASS),
        ((0, 0, 0), Verdict.PASS),
        ((-1, 64, 16), Verdict.FAIL),
        ((None, 64, 16), Verdict.PASS),
    ],
)
def test_an_address_may_change_with_the_generation_only(
    last: tuple[int | None, int, int], verdict: Verdict
) -> None:
    assert addresses_of((0, 64, 16), (0, 64, 16), (0, 64, 16), last).verdict is verdict


def test_addresses_before_the_first_capture_are_nobodys_business() -> None:
    trace = Trace.parse("cap 16: get 16; capture 16; replay 16")
    assert addresses_of((0, 64, 16), (0, 128, 16), (0, 128, 16), trace=trace).verdict is Verdict.PASS


def test_in_live_use_an_address_is_not_judged() -> None:
    case = Case("qwen3_vl", registered("reference"), Trace.parse("cap 16: get 16; get 16"), EAGER)
    steps = [StepFacts("get 16", 16, 0, answer(address=at)) for at in (64, 128)]
    judgement = judge_address(ObservedCase(case, observed(*steps)))
    assert (judgement.verdict, "captured regime alone" in judgement.detail) == (Verdict.SKIP, True)


def test_an_observation_survives_json() -> None:
    observation = forward(replace(RIGHT, eager=NOT_FINITE))
    assert msgspec.json.decode(msgspec.json.encode(observation), type=Observation) == observation


RULES = [
    Rule.STRUCTURE,
    Rule.BOUNDARY,
    Rule.FRESHNESS,
    Rule.CAPACITY,
    Rule.CLEAR,
    Rule.ADDRESS,
    Rule.PLACEMENT,
    Rule.REJECTION,
]


PLAYED = [
    *((trace, EAGER) for trace in CONTRACT_TRACES),
    *((trace, CAPTURE_ARM) for trace in CAPTURE_TRACES),
]


def rules_broken(model: Model, buffer: str) -> set[Rule]:
    """Without R0: an output is wrong besides, wherever a replay read wrong rows."""
    return set().union(*(broken(judge(model, trace, buffer, arm)) for trace, arm in PLAYED)) - {Rule.OUTPUT}


def test_the_reference_passes_every_rule_and_every_rule_is_put_to_the_test(qwen: Model) -> None:
    verdicts = [judge(qwen, trace, "reference", arm) for trace, arm in PLAYED]
    for rule in RULES:
        seen = {judged[rule].verdict for judged in verdicts}
        assert Verdict.PASS in seen, rule
        assert seen <= {Verdict.PASS, Verdict.SKIP}, [judged[rule] for judged in verdicts]


def test_a_released_revision_breaks_what_was_measured_on_its_releases(qwen: Model) -> None:
    later = {Rule.FRESHNESS, Rule.CAPACITY, Rule.CLEAR, Rule.ADDRESS, Rule.REJECTION}
    assert rules_broken(qwen, "original") == later
    assert rules_broken(qwen, "pr40932") == later | {Rule.STRUCTURE}
    assert rules_broken(qwen, "pr43617") == later
    assert rules_broken(qwen, "pr49397") == later


@pytest.mark.parametrize(
    ("trace", "buffer", "rule", "figure", "words"),
    [
        (
            "cap 16: set 9; clear 5; get 9",
            "pr43617",
            Rule.CLEAR,
            12,
            "payload 1 (request r1, cleared at step 2)",
        ),
        (
            "cap 16: set 9 request=bob; set 3; get 9",
            "pr43617",
            Rule.FRESHNESS,
            18,
            "request bob, replaced at step 2",
        ),
        (
            "cap 16: set 16; get 20",
            "pr43617",
            Rule.CAPACITY,
            48,
            "48 rows over 3 levels, first row 0 of level 0 holds zeros",
        ),
        ("cap 16: set 16; get 20", "original", Rule.CAPACITY, 12, "first row 16 of level 0 is missing"),
        (
            "cap 16: set 9; get 16",
            "pr40145",
            Rule.BOUNDARY,
            1,
            "get raised ValueError: get of 16 tokens, but only 9",
        ),
        ("cap 16: get -1", "pr43617", Rule.REJECTION, 1, "step 1 'get -1' was accepted"),
        ("cap 16: get 4; get 2", "pr40932", Rule.STRUCTURE, 2, "step 1 'get 4' was answered with None"),
        ("cap 16: set 9; get 20; get 9", "refuses_growth_after_clearing", Rule.CAPACITY, 27, "holds zeros"),
        ("cap 16: set 20; get 16", "one_row_too_many", Rule.BOUNDARY, 3, "first row 16 of level 0"),
        (
            "cap 16: set 9; get 9",
            "keeps_callers_tensor",
            Rule.FRESHNESS,
            27,
            "follows the caller's tensor of payload 1",
        ),
    ],
)
def test_the_figure_and_the_words(
    qwen: Model, trace: str, buffer: str, rule: Rule, figure: int, words: str
) -> None:
    judgement = judge(qwen, trace, buffer)[rule]
    assert (judgement.verdict, judgement.value, judgement.limit) == (Verdict.FAIL, figure, 0)
    assert words in judgement.detail


def test_rows_lost_by_one_step_are_counted_once(qwen: Model) -> None:
    judged = judge(qwen, "cap 16: set 16; get 20; get 16", "pr43617")
    assert broken(judged) == {Rule.CAPACITY}


def test_a_level_that_is_missing_has_not_moved(qwen: Model) -> None:
    judged = judge(qwen, "cap 16: get 16; get 1; get 16", "level_missing_for_one_token")
    assert broken(judged) == {Rule.STRUCTURE}


def test_a_step_that_a_revision_does_not_have_is_skipped(qwen: Model) -> None:
    judgement = judge(qwen, "cap 16: set 9; resize 20", "original")[Rule.CAPACITY]
    assert judgement.verdict is Verdict.SKIP
    assert "has no resize" in judgement.detail


def test_a_stale_row_is_judged_only_where_one_could_be_read(qwen: Model) -> None:
    judged = judge(qwen, "cap 16: set 9; get 9", "reference")
    assert {judged[Rule.FRESHNESS].verdict, judged[Rule.CLEAR].verdict} == {Verdict.SKIP}


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_rows_are_distinguished_in_half_precision(dtype: str) -> None:
    model = Model.build("qwen3_vl", dtype=dtype)
    case = case_of(CONTRACT_TRACES[0], "reference", dtype=dtype)
    said = judge_all(ObservedCase(case, play(case, model, buffer_named("reference"))))
    assert not [judgement for judgement in said if judgement.verdict in (Verdict.FAIL, Verdict.ERROR)]
    assert ArmSpec.parse("eager") == case.arm


@pytest.mark.parametrize(
    "trace", ["cap 2: set 2 levels=2; get 2", "cap 2: set 2 levels=2; set 1; get 2"], ids=["next", "later"]
)
def test_a_row_of_a_rejected_payload_is_reported_as_that_however_late_it_is_read(
    qwen: Model, trace: str
) -> None:
    """A set between the rejection and the read had made it R2 (found by fuzzing pr40932)."""
    assert Rule.BOUNDARY not in broken(judge(qwen, trace, "pr40932"))
    if "set 1" in trace:
        assert Rule.REJECTION in broken(judge(qwen, trace, "pr40932"))


class _Unmade(ReferenceBuffer):
    def __init__(
        self, capacity: int, hidden: int, levels: int, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        raise RuntimeError("no room today")


@pytest.mark.parametrize(
    "trace", ["cap 16: set 9; get 16", "cap 16: get 4", "cap 16: set 4 levels=4; get -1"]
)
def test_a_constructor_that_raises_is_judged_whatever_is_called_first(qwen: Model, trace: str) -> None:
    """A call that has to be refused comes last: an error of the constructor is no refusal."""
    case = case_of(trace, "reference")
    said = {
        judgement.rule: judgement for judgement in judge_all(ObservedCase(case, play(case, qwen, _Unmade)))
    }
    assert said[Rule.BOUNDARY].verdict is Verdict.FAIL
    assert "make raised RuntimeError: no room today" in said[Rule.BOUNDARY].detail
    assert not [
        judgement for judgement in said.values() if judgement.verdict in (Verdict.PASS, Verdict.ERROR)
    ]
