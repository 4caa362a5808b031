"""Faults of a trace: the first wrong step counts, and their shape has no numbers."""

import pytest

from cases.selftest.fuzzing.hunting import target
from deepstack_harness.contract.trace import Trace
from deepstack_harness.fuzzing.faults import Fault, fault_of_death, shape_of
from deepstack_harness.fuzzing.hunt import Hunt
from deepstack_harness.fuzzing.player import Death, FindingKind, InProcessPlayer


def faults(buffer: str, trace: str, arm: str = "eager") -> list[Fault]:
    return Hunt(target(buffer, arm), InProcessPlayer()).replay(Trace.parse(trace), new_session=True)[0]


def test_a_fault_has_the_trace_up_to_its_step() -> None:
    (fault,) = faults("stale_after_shorter_set", "cap 16: set 9; set 3; get 16; clear 16; get 4")
    assert (fault.name, str(fault.trace)) == ("R3", "cap 16: set 9; set 3; get 16")


def test_nothing_is_judged_behind_a_wrong_row() -> None:
    told = faults("pr43617", "cap 16: set 9; clear 3; get 16; set 4 levels=4; get 16; get -1")
    assert [fault.name for fault in told] == ["R5"]


def test_behind_a_fault_that_says_nothing_of_rows_the_trace_is_judged_on() -> None:
    trace = "cap 16: capture 16; get 20; replay 16; set 9; clear 3; get 16"
    told = faults("pr43617", trace, "eager/full")
    assert [fault.name for fault in told] == ["R6", "R5"]


def test_r0_is_not_told_beside_the_rule_that_it_follows_from() -> None:
    told = faults("clears_by_counter", "cap 16: capture 16; set 16; replay 16; replay 16", "eager/full")
    assert [fault.name for fault in told] == ["R5"]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (
            "step 3 'get 16': 2 rows over 1 level, first row 9 of level 0 holds zeros",
            "step 12 'forward 4': 1,030 rows over 3 levels, first row 0 of level 2 holds zeros",
        ),
        (
            "step 3 'get 16': 1 row over 1 level, first row 9 of level 0 holds zeros",
            "step 3 'get 16': 2 rows over 2 levels, first row 9 of level 0 holds zeros",
        ),
        (
            "step 1 'capture 16' allocated 1 tensor in get or clear while they were captured",
            "step 1 'capture 16' allocated 3 tensors in get or clear while they were captured",
        ),
        (
            "step 1 'set 4 spans=0-2': set raised ValueError: no room for 4 (and 3 more)",
            "step 7 'set 80': set raised ValueError: it is full",
        ),
        ("step 1 'forward 4': 1.5e-05 from eager", "step 9 'forward 16': 0.25 from eager"),
    ],
)
def test_faults_that_differ_in_numbers_and_messages_alone_have_one_shape(one: str, other: str) -> None:
    assert shape_of(one) == shape_of(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("step 1 'clear -1' was accepted", "step 1 'get -1' was accepted"),
        ("step 1 'get 4': get raised ValueError: x", "step 1 'get 4': get raised TypeError: x"),
        (
            "step 1 'set 4 levels=2' was accepted",
            "step 1 'set 4 hidden=7' was accepted",
        ),
        (
            "step 3 'get 16': 2 rows over 1 level, first row 9 of level 0 holds zeros",
            "step 3 'get 16': 2 rows over 1 level, first row 9 of level 0 is missing or one too many",
        ),
    ],
)
def test_other_calls_exceptions_and_origins_are_other_shapes(one: str, other: str) -> None:
    assert shape_of(one) != shape_of(other)


def test_a_fault_keeps_what_the_header_of_its_trace_says() -> None:
    text = "cap 16 levels 1 mode inference buffers 2: set 9; set 4 on=b; set 3; get 16; clear 16"
    (fault,) = faults("stale_after_shorter_set", text)
    assert str(fault.trace) == text.removesuffix("; clear 16")


def test_a_death_is_a_fault_of_the_step_that_was_played() -> None:
    trace = Trace.parse("cap 16: set 9; resize 4; get 16")
    fault = fault_of_death(trace, Death(FindingKind.CRASH, 2, "ended by SIGSEGV in step 2 'resize 4'"))
    assert fault.key == ("crash", "resize")
    assert str(fault.trace) == "cap 16: set 9; resize 4"
