"""The live ledger: whose rows were read, which rule that breaks, and what a user notices."""

from collections.abc import Sequence

import pytest

from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.verdicts import Effect, Judgement, Verdict
from deepstack_harness.live_engine.facts import LiveStep, StartFacts
from deepstack_harness.live_engine.rows_read import judge_rows, judge_structure

TEXT = LiveStep(4, answered=True, tokens=4, rows=4)
VISUAL = LiveStep(4, answered=True, tokens=4, visual=4, rows=4)


def judged(steps: Sequence[LiveStep]) -> dict[Rule, Judgement]:
    return {said.rule: said for said in judge_rows(steps)}


def stale(origin: int | None, *, wrong: int = 1, padding: int = 0, visual: int = 0) -> LiveStep:
    return LiveStep(
        4, answered=True, tokens=4, visual=visual, rows=4, wrong=wrong, padding=padding,
        origins=((1, origin),), requests=(("a", 1, False), ("b", 3, True)),
    )  # fmt: skip


def broken(steps: Sequence[LiveStep]) -> set[Rule]:
    return {rule for rule, said in judged(steps).items() if said.verdict is Verdict.FAIL}


def test_right_rows_break_nothing() -> None:
    assert broken([VISUAL, TEXT, VISUAL]) == set()


def test_a_row_that_was_cleared_is_r5_and_names_its_request() -> None:
    said = judged([VISUAL, stale(0)])[Rule.R5]
    assert (said.verdict, said.value, said.effect, said.steps) == (Verdict.FAIL, 1.0, Effect.OUTPUT, (2,))
    assert said.detail.endswith("rows of b")
    assert broken([VISUAL, stale(0)]) == {Rule.R5}


@pytest.mark.parametrize("steps", [[VISUAL, VISUAL, stale(0)], [VISUAL, stale(0, visual=2)]])
def test_a_row_that_a_later_payload_replaced_is_r3(steps: Sequence[LiveStep]) -> None:
    assert broken(steps) == {Rule.R3}


@pytest.mark.parametrize("origin", [None, 1])
def test_a_row_of_no_earlier_payload_is_r2(origin: int | None) -> None:
    assert broken([VISUAL, stale(origin)]) == {Rule.R2}


def test_rows_behind_the_tokens_are_padding() -> None:
    said = judged([VISUAL, stale(0, wrong=0, padding=1)])[Rule.R5]
    assert (said.verdict, said.effect) == (Verdict.FAIL, Effect.PADDING)


def test_a_short_answer_and_a_lost_payload_are_r2() -> None:
    assert broken([LiveStep(4, answered=True, tokens=4, rows=3)]) == {Rule.R2}
    assert broken([LiveStep(4, answered=False, tokens=4, visual=4, wrong=4)]) == {Rule.R2}


def test_no_step_is_no_pass() -> None:
    assert {said.verdict for said in judge_rows([])} == {Verdict.ERROR}
    assert judge_structure(StartFacts("0.32.0"), ()).verdict is Verdict.ERROR


def test_none_in_the_profile_run_is_r1() -> None:
    start = StartFacts("0.22.1", start_steps=(LiveStep(64, answered=False),))
    said = judge_structure(start, [VISUAL])
    assert (said.rule, said.verdict, said.value) == (Rule.R1, Verdict.FAIL, 1.0)
    assert "profile run" in said.detail
    assert judge_structure(StartFacts("0.32.0"), [VISUAL]).verdict is Verdict.PASS
