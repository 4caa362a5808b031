"""Distances: one step of a case is the worst, for the judgement, the record and the table alike."""

from dataclasses import replace

from cases.selftest.oracles.written_observations import COMPILED, QUIET, RIGHT, answer, observed
from deepstack_harness.contract.buffer_ref import registered
from deepstack_harness.contract.case import Case
from deepstack_harness.contract.observation import Distances, Observation, StepFacts
from deepstack_harness.contract.trace import Trace
from deepstack_harness.oracles import output
from deepstack_harness.oracles.distances import case_distances, worst_step
from deepstack_harness.oracles.observed_case import ObservedCase

CASE = Case(
    "qwen3_vl", registered("reference"), Trace.parse("cap 16: set 16; forward 16; forward 8"), COMPILED
)


def seen(visual: Distances | None, text: Distances | None) -> Observation:
    """A forward with a payload, and one behind it."""
    steps = [
        StepFacts(f"forward {tokens}", 16, answer=answer(tokens=tokens), distances=distances)
        for tokens, distances in ((16, visual), (8, text))
    ]
    return observed(StepFacts("set 16", 16), *steps)


def test_a_step_without_a_payload_may_be_the_worst() -> None:
    wrong = seen(RIGHT, replace(QUIET, eager=4.0, no_deepstack=4.0, zero_deepstack=4.0))
    worst = worst_step(CASE, wrong)
    assert worst is not None
    assert (worst.number, str(worst.step), worst.distances.eager) == (3, "forward 8", 4.0)
    assert case_distances(CASE, wrong) == replace(RIGHT, eager=4.0)
    assert output.judge(ObservedCase(CASE, wrong)).value == 4.0


def test_the_worst_is_furthest_above_its_own_tolerance() -> None:
    rounded = replace(RIGHT, eager=0.2, rounding=0.1)  # three roundings are accepted
    found = seen(rounded, replace(QUIET, eager=0.1))
    worst = worst_step(CASE, found)
    assert worst is not None
    assert worst.distances.eager == 0.1
    assert case_distances(CASE, found) == replace(rounded, eager=0.1)


def test_of_steps_that_are_all_right_one_with_a_payload_is_shown() -> None:
    assert case_distances(CASE, seen(RIGHT, QUIET)) == RIGHT
    assert case_distances(CASE, seen(QUIET, RIGHT)) == RIGHT


def test_without_any_payload_the_step_itself_is_shown() -> None:
    alone = replace(QUIET, eager=0.5)
    assert case_distances(CASE, seen(None, alone)) == alone


def test_equal_outputs_of_a_payload_that_was_never_read_are_no_distance() -> None:
    assert case_distances(CASE, seen(None, QUIET)) is None
    never_set = replace(CASE, trace=Trace.parse("cap 16: get 16; forward 16; forward 8"))
    assert case_distances(never_set, seen(None, QUIET)) == QUIET


def test_a_case_that_ran_no_decoder_has_no_distances() -> None:
    assert worst_step(CASE, seen(None, None)) is None
    assert case_distances(CASE, seen(None, None)) is None
