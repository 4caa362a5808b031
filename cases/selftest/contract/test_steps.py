"""Rows of steps: what a user notices of a broken promise, and what the row has of its first call."""

import msgspec
import pytest

from deepstack_harness.contract.observation import DroppedGuard
from deepstack_harness.contract.oracles.promises import JudgedSteps, judge_steps
from deepstack_harness.contract.rules import Promise
from deepstack_harness.contract.steps import ChangedInput, Difference, SteppedArm, SteppedCall, SteppedRegion
from deepstack_harness.contract.verdicts import SCHEMA_VERSION, Effect, Row, Verdict

WARM, MASK = SteppedCall(1, warm_up=True), ChangedInput("mask", "presence", "absent", "given")
ANSWER, LEFT = Difference("answer[0]", "tensor", 0.5, 0.1), Difference("self.calls", "2 instead of 3")
GUARD = DroppedGuard("mask", "mask is None", "mine.py:6", "None", "given", 2, 2)


def judged(*calls: SteppedCall, arm: str = "eager/drop_all") -> JudgedSteps:
    return judge_steps(SteppedRegion("score", "2.13.0", (SteppedArm(arm, (WARM, *calls), 1),)))


@pytest.mark.parametrize(
    ("promise", "call", "effect"),
    [
        (Promise.SPECIALISATION, SteppedCall(2, warm_up=False, differences=(ANSWER,)), Effect.OUTPUT),
        (Promise.SPECIALISATION, SteppedCall(2, warm_up=False, raised="RuntimeError"), Effect.CRASH),
        (Promise.SPECIALISATION, SteppedCall(2, warm_up=False, wanted="ValueError"), None),
        (
            Promise.LAYOUT,
            SteppedCall(
                2, warm_up=False, differences=(ANSWER,),
                changed=(ChangedInput("x", "dtype", "float32", "float16", 0.5, 0.0),),
            ),
            Effect.OUTPUT,
        ),
        (Promise.NEUTRAL_ROWS, SteppedCall(2, warm_up=False, poisoned=2.0), Effect.OUTPUT),
        (Promise.EFFECTS, SteppedCall(2, warm_up=False, differences=(LEFT,)), None),
        (Promise.OWNERSHIP, SteppedCall(2, warm_up=False, split=1.0), Effect.OUTPUT),
        (
            Promise.OWNERSHIP,
            SteppedCall(2, warm_up=False, split=1.0, split_raised="RuntimeError"),
            Effect.CRASH,
        ),
    ],
)  # fmt: skip
def test_the_effect_follows_from_the_first_call(
    promise: Promise, call: SteppedCall, effect: Effect | None
) -> None:
    (row,) = judged(call).broken
    assert (row.rule, row.effect, row.step) == (promise, effect, 2)


def test_a_row_has_the_figures_and_the_inputs_of_the_first_wrong_call() -> None:
    wrong = SteppedCall(3, warm_up=False, differences=(ANSWER,), changed=(MASK,), guards=(GUARD,))
    later = SteppedCall(4, warm_up=False, differences=(Difference("answer[0]", "tensor", 9.0, 0.1),))
    found = judged(SteppedCall(2, warm_up=False), wrong, later)
    (row,) = found.broken
    assert (row.value, row.limit, row.step, row.steps) == (0.5, 0.1, 3, (3, 4))
    assert (row.inputs, row.guards, row.case) == (("mask",), ("mask is None",), "score")
    assert (row.arm, row.backend, row.guard_policy) == ("eager/drop_all", "eager", "drop_all")
    assert found.first_call(row) is wrong
    assert row.detail == "; ".join(found.sentences(row))


def test_a_promise_that_holds_has_a_row_without_figures() -> None:
    passed, *others = judged(SteppedCall(2, warm_up=False, changed=(MASK,))).rows
    assert (passed.verdict, passed.chances, passed.effect, passed.steps) == (Verdict.PASS, 1, None, ())
    assert {row.verdict for row in others} == {Verdict.SKIP}


def test_rows_of_promises_are_rows_with_a_promise_for_their_rule() -> None:
    for row in judged(SteppedCall(2, warm_up=False, poisoned=2.0)).rows:
        text = msgspec.json.encode(row)
        written = msgspec.json.decode(text)
        assert (written["rule"], written["promise"]) == (row.rule, row.rule)
        assert written["schema_version"] == SCHEMA_VERSION
        assert msgspec.json.decode(text, type=Row[Promise]) == row
