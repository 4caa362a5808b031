"""The boundary-check contract: every small question is asked, and each fault of a boundary is found."""

import pytest

from cases.selftest.fuzzing.hunting import target
from deepstack_harness.contract.trace import Op, Trace
from deepstack_harness.fuzzing.boundary import every_question, questions, search_boundary
from deepstack_harness.fuzzing.hunt import Hunt
from deepstack_harness.fuzzing.player import InProcessPlayer


def asked(buffer: str, drawn: int) -> Hunt:
    going = Hunt(target(buffer), InProcessPlayer())
    search_boundary(going, drawn)
    return going


def test_every_n_and_p_of_a_small_capacity_is_asked() -> None:
    acting = [
        [step for number, step in enumerate(trace.steps) if number % 2]
        for trace in every_question()
        if trace.capacity == 3
    ]
    assert {(n, p) for n in range(5) for p in range(-1, 6)} <= {(a[0].tokens, a[-1].tokens) for a in acting}


def test_all_rows_are_read_before_the_first_step_and_behind_each() -> None:
    questions_of_3 = [trace for trace in every_question() if trace.capacity == 3]
    assert all({step.op for step in trace.steps[::2]} == {Op.GET} for trace in questions_of_3)
    assert Trace.parse("cap 3: get 3; set 4; get 4; get 5; get 5; clear 5; get 5") in questions_of_3


def test_reference_answers_every_question_rightly() -> None:
    result = asked("reference", 20)
    assert result.findings == []
    assert result.progress.examples == questions(20)


@pytest.mark.parametrize(
    ("buffer", "rule"),
    [
        ("pr40145", "R2"),
        ("pr43617", "R4"),
        ("refuses_padding", "R2"),
        ("refuses_full_capacity", "R2"),
        ("clear_checks_padded_count", "R2"),
        ("answers_up_to_capacity", "R4"),
        ("accepts_negative_get", "R8"),
        ("rejects_get_after_clearing", "R8"),
    ],
)
def test_a_fault_of_the_boundary_is_found(buffer: str, rule: str) -> None:
    assert rule in {finding.name for finding in asked(buffer, 5).findings}
