"""Faults of a trace: the first wrong step counts, and their key has no numbers."""

from dataclasses import replace

import pytest

from cases.selftest.fuzz.hunting import target
from deepstack_harness.contract.observation import RowOrigin
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.trace import Trace
from deepstack_harness.contract.verdicts import FaultKind, Judgement, Verdict
from deepstack_harness.fuzz.faults import Fault, FaultKey, fault_of_death, fault_of_judgement
from deepstack_harness.fuzz.hunt import Hunt
from deepstack_harness.fuzz.player import Death, FindingKind, InProcessPlayer


def faults(buffer: str, trace: str, arm: str = "eager") -> list[Fault]:
    return Hunt(target(buffer, arm), InProcessPlayer()).replay(Trace.parse(trace), new_session=True)[0]


def test_a_fault_has_the_trace_up_to_its_step() -> None:
    (fault,) = faults("stale_after_shorter_set", "cap 16: set 9; set 3; get 16; clear 16; get 4")
    assert (fault.name, str(fault.trace)) == ("R3", "cap 16: set 9; set 3; get 16")


@pytest.mark.parametrize(
    ("buffer", "arm", "trace", "names"),
    [
        ("pr43617", "eager", "set 9; clear 3; get 16; set 4 levels=4; get 16; get -1", ["R5"]),
        ("pr43617", "eager/full", "capture 16; get 20; replay 16; set 9; clear 3; get 16", ["R6", "R5"]),
        ("clears_by_counter", "eager/full", "capture 16; set 16; replay 16; replay 16", ["R5"]),
    ],
    ids=["nothing after a wrong row", "on after a fault that is not about rows", "no R0 that follows"],
)
def test_a_trace_is_judged_as_far_as_it_can_be(buffer: str, arm: str, trace: str, names: list[str]) -> None:
    assert [fault.name for fault in faults(buffer, f"cap 16: {trace}", arm)] == names


def key(text: str, judgement: Judgement) -> FaultKey:
    return fault_of_judgement(Trace.parse(f"cap 16: get 16; {text}"), judgement).key


CALL = Judgement(
    Rule.BOUNDARY, Verdict.FAIL, 1, 0, "calls", "step 2", shape=FaultKind.RAISED, exception="ValueError"
)
ROWS = Judgement(
    Rule.FRESHNESS, Verdict.FAIL, 2, 0, "rows", "step 2", shape=FaultKind.REPLACED, level=0, row=9
)


@pytest.mark.parametrize(
    ("judgement", "one", "other"),
    [
        (CALL, "set 4 spans=0-2", "set 80"),
        (CALL, "set 4 dtype=float16 grad", "set 4 values=nan"),
        (ROWS, "get 16", "forward 4"),
        (ROWS, "set 9", "set 9 levels=2"),
    ],
)
def test_faults_that_differ_only_in_numbers_and_payload_options_have_one_key(
    judgement: Judgement, one: str, other: str
) -> None:
    longer = replace(
        judgement, value=1030, detail="other words", row=judgement.row and 3, level=2, steps=(2,)
    )
    assert key(one, judgement) == key(other, longer)


@pytest.mark.parametrize(
    ("one", "other"),
    [("clear -1", "get -1"), ("get 4", "get -4"), ("set 4 levels=2", "set 4 hidden=7"), ("set 4", "get 4")],
)
def test_other_calls_have_other_keys(one: str, other: str) -> None:
    assert key(one, CALL) != key(other, CALL)


@pytest.mark.parametrize(
    "other",
    [
        replace(CALL, exception="TypeError"),
        replace(CALL, shape=FaultKind.ACCEPTED, exception=""),
        replace(CALL, rule=Rule.CAPACITY),
    ],
)
def test_other_exceptions_shapes_and_rules_have_other_keys(other: Judgement) -> None:
    assert key("get 4", CALL) != key("get 4", other)


@pytest.mark.parametrize(
    ("buffer", "trace", "fault"),
    [
        ("stale_after_shorter_set", "set 9; set 3; get 16", (FaultKind.REPLACED, 3, 0, 3, (1, 0, 3), "")),
        ("pr43617", "set 9; clear 3; get 16", (FaultKind.CLEARED, 3, 0, 3, (1, 0, 3), "")),
        ("pr40145", "set 9; get 16", (FaultKind.RAISED, 2, None, None, None, "ValueError")),
        ("pr40932", "get 4", (FaultKind.NONE, 1, None, None, None, "")),
        ("pr43617", "set 4; get -1", (FaultKind.ACCEPTED, 2, None, None, None, "")),
        ("pr40932", "set 16; get 20", (FaultKind.MISSING, 2, 0, 16, None, "")),
    ],
)
def test_a_judgement_names_what_was_wrong_first(
    buffer: str, trace: str, fault: tuple[FaultKind, int, int | None, int | None, RowOrigin | None, str]
) -> None:
    (played,) = faults(buffer, f"cap 16: {trace}")
    wrong = played.judgement
    assert wrong is not None
    assert (wrong.shape, wrong.step, wrong.level, wrong.row, wrong.origin, wrong.exception) == fault


def test_a_fault_has_what_the_header_of_its_trace_has() -> None:
    text = "cap 16 levels 1 mode inference buffers 2: set 9; set 4 on=b; set 3; get 16; clear 16"
    (fault,) = faults("stale_after_shorter_set", text)
    assert str(fault.trace) == text.removesuffix("; clear 16")


def test_a_death_is_a_fault_of_the_step_that_was_played() -> None:
    trace = Trace.parse("cap 16: set 9; resize 4; get 16")
    fault = fault_of_death(trace, Death(FindingKind.CRASH, 2, "ended by SIGSEGV in step 2 'resize 4'"))
    assert fault.key == FaultKey("crash", "", "resize")
    assert str(fault.trace) == "cap 16: set 9; resize 4"
