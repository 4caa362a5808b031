"""R0, R10 and R14 of interpreted steps, on accesses written down by hand."""

from dataclasses import replace

import pytest

from cases.selftest.oracles.written_observations import RIGHT, TRACE, forward
from deepstack_harness.contract.arm_spec import ArmSpec
from deepstack_harness.contract.buffer_ref import registered
from deepstack_harness.contract.case import Case
from deepstack_harness.contract.facts.accesses import (
    AccessFacts,
    Disagreement,
    KernelAccess,
    LibraryCall,
    joined,
    rows_in_words,
)
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.verdicts import Judgement, Verdict
from deepstack_harness.oracles.all_rules import judge_all
from deepstack_harness.oracles.executed import judge_configurations, judge_step
from deepstack_harness.oracles.observed_case import ObservedCase

READ = KernelAccess(
    "add_0", "payload[0]", 128, 0, 128, argument="in_ptr1", shape=(16, 2), itemsize=4, read=((0, 16),),
    elements_read=32,
)  # fmt: skip
WHOLE = replace(READ, kernel="add_1", shape=(64, 2), size=512, end=512, read=((0, 64),), elements_read=128)
WILD = replace(READ, kernel="add_2", end=136, wild=((16, 17),), in_storage=False)
MM = LibraryCall("aten.mm.out", ("buffer 0",), 384)
PAIR = ("XBLOCK=1", "XBLOCK=8")


def broken(*accesses: KernelAccess, tokens: int = 16) -> dict[Rule, Judgement]:
    said = judge_step(AccessFacts(accesses, calls=(MM,)), tokens)
    return {one.rule: one for one in said if one.verdict is not Verdict.PASS}


def test_rows_of_the_step_inside_the_tensor_are_right() -> None:
    assert broken(READ) == {}


def test_rows_of_a_payload_behind_the_step_break_work_alone() -> None:
    said = broken(READ, WHOLE)
    assert set(said) == {Rule.R10}
    assert (said[Rule.R10].value, said[Rule.R10].limit) == (64, 16)
    assert "kernel add_1 read rows 0..63 of payload[0] (in_ptr1); 62% of the bytes" in said[Rule.R10].detail


def test_a_row_that_is_written_counts_as_well() -> None:
    written = replace(READ, read=(), written=((0, 17),))
    assert "add_0 wrote rows 0..16" in broken(written)[Rule.R10].detail


def test_rows_of_other_tensors_are_no_work_on_a_payload() -> None:
    assert broken(replace(WHOLE, tensor="layers.0.weight")) == {}


def test_rows_outside_of_the_tensor_break_memory_alone_and_the_first_is_named() -> None:
    said = broken(READ, WILD, replace(WILD, kernel="add_3", end=512))
    assert set(said) == {Rule.R14}
    assert said[Rule.R14].value == 8 + 384
    assert said[Rule.R14].detail == (
        "kernel add_2 touched bytes [0, 136) of payload[0] (in_ptr1), which has 128: row 16 of 16, "
        "outside of any memory; 1 more accesses were outside"
    )


def test_what_a_library_was_given_unwritten_is_named() -> None:
    facts = AccessFacts((READ,), 3, (replace(MM, unwritten=("buffer 0",)),))
    (said,) = [one for one in judge_step(facts, 16) if one.verdict is Verdict.FAIL]
    assert (said.rule, said.value, said.unit) == (Rule.R14, 3, "rows")
    assert "aten.mm.out was given buffer 0" in said.detail


def test_nothing_measured_is_an_error_of_both() -> None:
    assert {one.verdict for one in judge_step(AccessFacts(()), 16)} == {Verdict.ERROR}
    assert judge_configurations(AccessFacts((READ,))).verdict is Verdict.ERROR


@pytest.mark.parametrize(("difference", "verdict"), [(None, Verdict.PASS), (0.5, Verdict.FAIL)])
def test_configurations_have_to_agree(difference: float | None, verdict: Verdict) -> None:
    apart = () if difference is None else (Disagreement("add_0", "out_ptr0", PAIR, difference),)
    said = judge_configurations(AccessFacts((READ,), compared=4, disagreements=apart))
    assert (said.rule, said.verdict) == (Rule.R0, verdict)
    named = "kernel add_0 writes out_ptr0 differently with XBLOCK=1 and with XBLOCK=8"
    assert (named in said.detail) is (difference is not None)


def judged(arm: str, *accesses: KernelAccess) -> dict[Rule, Judgement]:
    case = Case("qwen3_vl", registered("reference"), TRACE, ArmSpec.parse(arm))
    observation = forward(RIGHT, accesses=AccessFacts(accesses) if accesses else None)
    return {one.rule: one for one in judge_all(ObservedCase(case, observation))}


def test_memory_is_judged_where_code_is_interpreted_alone() -> None:
    assert Rule.R14 not in judged("inductor/drop_all")
    assert judged("h200/drop_all")[Rule.R14].verdict is Verdict.SKIP
    assert judged("h200/drop_all", READ)[Rule.R14].verdict is Verdict.PASS
    said = judged("h200/drop_all", READ, WILD)[Rule.R14]
    assert (said.verdict, said.steps) == (Verdict.FAIL, (3,))
    assert said.detail.startswith("step 3 'forward 16': kernel add_2 touched")


def test_work_of_a_case_is_that_of_its_kernels() -> None:
    assert judged("h200/drop_all", READ)[Rule.R10].verdict is Verdict.PASS
    said = judged("h200/drop_all", READ, WHOLE)[Rule.R10]
    assert (said.verdict, said.value, said.limit) == (Verdict.FAIL, 64, 16)
    assert "kernel add_1 read rows 0..63 of payload[0]" in said.detail


def test_rows_are_told_as_people_count_them() -> None:
    assert rows_in_words([(16, 17)]) == "row 16"
    assert rows_in_words([(0, 3), (2, 5), (9, 10)]) == "rows 0..4, 9"


def test_the_facts_of_several_calls_are_one() -> None:
    one = AccessFacts((READ,), 1, (MM,), 2)
    both = joined([one, one])
    assert both is not None
    assert (len(both.accesses), both.unwritten_rows, len(both.calls), both.programs) == (2, 2, 2, 4)
    assert (joined([]), joined([one])) == (None, one)


@pytest.mark.parametrize(
    ("compared", "rules"), [(0, {Rule.R10, Rule.R14}), (2, {Rule.R0, Rule.R10, Rule.R14})]
)
def test_configurations_are_judged_where_two_were_run(compared: int, rules: set[Rule]) -> None:
    said = {one.rule: one for one in judge_step(AccessFacts((READ,), calls=(MM,), compared=compared), 16)}
    assert set(said) == rules
    assert {one.verdict for one in said.values()} == {Verdict.PASS}
