"""Findings of steps: what a user notices of a broken promise."""

import pytest

from deepstack_harness.contract.rules import Promise
from deepstack_harness.contract.steps import Difference, StepFinding, SteppedCall
from deepstack_harness.contract.verdicts import Effect, Verdict

RIGHT = SteppedCall(2, warm_up=False)
RAISES = SteppedCall(2, warm_up=False, raised="RuntimeError")
BOTH_RAISE = SteppedCall(2, warm_up=False, raised="RuntimeError", wanted="ValueError")
PART_RAISES = SteppedCall(2, warm_up=False, split=1.0, split_raised="RuntimeError")
ANSWER, LEFT = Difference("answer[0]", "tensor", 0.5, 0.1), Difference("self.calls", "2 instead of 3")


@pytest.mark.parametrize(
    ("promise", "call", "difference", "effect"),
    [
        (Promise.SPECIALISATION, RIGHT, ANSWER, Effect.OUTPUT),
        (Promise.SPECIALISATION, RAISES, None, Effect.CRASH),
        (Promise.SPECIALISATION, BOTH_RAISE, None, None),
        (Promise.LAYOUT, RIGHT, ANSWER, Effect.OUTPUT),
        (Promise.NEUTRAL_ROWS, RIGHT, None, Effect.OUTPUT),
        (Promise.EFFECTS, RIGHT, LEFT, None),
        (Promise.OWNERSHIP, RIGHT, None, Effect.OUTPUT),
        (Promise.OWNERSHIP, PART_RAISES, None, Effect.CRASH),
    ],
)
def test_the_effect_follows_from_the_first_call(
    promise: Promise, call: SteppedCall, difference: Difference | None, effect: Effect | None
) -> None:
    finding = StepFinding(promise, "eager/drop_all", Verdict.FAIL, 1, (2,), call, difference)
    assert finding.effect is effect


def test_a_kept_promise_has_no_effect() -> None:
    assert StepFinding(Promise.SPECIALISATION, "eager/drop_all", Verdict.PASS, 1).effect is None
