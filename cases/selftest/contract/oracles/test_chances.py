"""Chances: how often a rule was put to the test; a rule that had none never passes."""

import pytest
from torch import Tensor
from typing_extensions import override

from cases.selftest.play.playing import judge
from deepstack_harness.audit.class_verdicts import sum_up_each_regime
from deepstack_harness.catalogue.plans import Where, check_traces, plan_check
from deepstack_harness.contract.arm import EAGER, ArmSpec
from deepstack_harness.contract.case import Compare, Regime, live_buffer
from deepstack_harness.contract.oracles.judge import judge_case
from deepstack_harness.contract.oracles.trace_audit import judge_figure, passed
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.verdicts import FaultKind, Verdict
from deepstack_harness.models.reference import ReferenceBuffer
from deepstack_harness.play.model import Model
from deepstack_harness.play.play_case import play_case
from deepstack_harness.text import plural


class RefusesEverySet(ReferenceBuffer):
    """Takes no payload at all."""

    @override
    def set(self, payload: Tensor) -> None:
        raise TypeError("no payload")


@pytest.mark.slow  # 3 s
def test_a_buffer_that_takes_no_payload_passes_no_rule_that_is_about_one() -> None:
    buffer = live_buffer("made here")
    plan = [
        planned
        for planned in plan_check(Where("qwen3_vl"), buffer, check_traces())
        if planned.case.regime is Regime.LIVE and planned.case.trace.capacity < 1000
    ]
    cases = [judge_case(planned, play_case(planned.case, {buffer: RefusesEverySet})) for planned in plan]
    (verdicts,) = sum_up_each_regime(cases, "here", "RefusesEverySet", lambda _: None).by_regime.values()
    about_a_payload = {Rule.FRESHNESS, Rule.CAPACITY, Rule.CLEAR, Rule.GRAPHS}
    assert verdicts.kept & about_a_payload == set()
    assert Rule.BOUNDARY in verdicts.broken


@pytest.mark.parametrize(
    ("trace", "rule", "chances"),
    [
        ("cap 16: get 4; get 16; get 0", Rule.STRUCTURE, 3),
        ("cap 16: get 4; set 9; get 16; clear 16", Rule.BOUNDARY, 3),  # only a set shows nothing
        ("cap 16: set 9; get 16; set 3; get 16; get 2; set 9; get 16", Rule.FRESHNESS, 1),
        ("cap 16: set 9; get 20; resize 30; set 40; get 40", Rule.CAPACITY, 3),
        ("cap 16: get 20; set 9", Rule.CAPACITY, None),  # nothing was there to lose
        ("cap 16: set 9; clear 9; get 16; get 9; get 0", Rule.CLEAR, 2),
        ("cap 16: set 9; get 16", Rule.CLEAR, None),
        ("cap 16: get 16; set 9; get 16", Rule.PLACEMENT, 2),
        ("cap 16: get -1; set 4 levels=1; set 4 shape=flat; set 4", Rule.REJECTION, 3),
        ("cap 16: get 4; get 4; set 4; get 4", Rule.GRAPHS, 1),
        ("cap 16: get 4; get 8; get 4", Rule.GRAPHS, None),
    ],
)
def test_chances_are_counted(qwen: Model, trace: str, rule: Rule, chances: int | None) -> None:
    judgement = judge(qwen, trace, "reference", EAGER, Compare.NOTHING)[rule]
    assert (judgement.verdict, judgement.chances) == (Verdict.PASS if chances else Verdict.SKIP, chances)


def test_uses_of_graphs_are_counted(qwen: Model) -> None:
    trace = "cap 16: capture 16; set 9; replay 16; set 3; replay 16"
    judgement = judge(qwen, trace, "reference", ArmSpec.parse("eager/full"), Compare.NOTHING)[Rule.ADDRESS]
    assert (judgement.verdict, judgement.chances) == (Verdict.PASS, 5)


def test_a_broken_rule_has_its_chances_too(qwen: Model) -> None:
    judgement = judge(qwen, "cap 16: set 9; clear 9; get 16; get 16", "original", EAGER, Compare.NOTHING)[
        Rule.STRUCTURE
    ]
    assert judgement.verdict is Verdict.PASS
    assert judgement.chances == 2


def test_without_a_chance_no_rule_passes() -> None:
    assert passed(Rule.CAPACITY, 0, 0, "rows", chances=0).verdict is Verdict.SKIP
    assert passed(Rule.CAPACITY, 0, 0, "rows", chances=0).detail == "not tested: 0 growths"
    assert judge_figure(Rule.CAPACITY, 0, 0, "rows", shape=FaultKind.ZEROS, chances=0).verdict is Verdict.SKIP
    broken = judge_figure(Rule.CAPACITY, 1, 0, "rows", shape=FaultKind.ZEROS, chances=0)
    assert (broken.verdict, broken.chances) == (Verdict.FAIL, 1)


def test_verdicts_of_a_class_have_the_chances_of_all_its_cases() -> None:
    buffer = live_buffer("made here")
    traces = ["cap 16: set 9; get 20", "cap 16: set 9; resize 20; set 30", "cap 16: get 4"]
    plan = plan_check(Where("qwen3_vl"), buffer, traces)
    cases = [judge_case(planned, play_case(planned.case, {buffer: ReferenceBuffer})) for planned in plan]
    (verdicts,) = sum_up_each_regime(cases, "here", "ReferenceBuffer", lambda _: None).by_regime.values()
    chances = {row.rule: row.chances for row in verdicts.rows}
    assert chances[Rule.CAPACITY] == 3
    assert chances[Rule.STRUCTURE] == 2
    assert chances[Rule.ADDRESS] is None


@pytest.mark.parametrize("rule", Rule)
def test_every_rule_has_a_word_for_what_tests_it(rule: Rule) -> None:
    assert plural(1, rule.chance).startswith("1 ")
    assert plural(2, rule.chance).endswith("s")
