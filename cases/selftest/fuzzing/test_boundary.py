"""The boundary-check contract: every small question is asked, and each fault of a boundary is found."""

import pytest

from cases.selftest.fuzzing.hunting import target
from deepstack_harness.contract.trace import Op, Step
from deepstack_harness.fuzzing.boundary import every_question, hunt_boundary, questions


def test_every_n_and_p_of_a_small_capacity_is_asked() -> None:
    asked = {(steps[0].tokens, steps[-1].tokens) for capacity, steps in every_question() if capacity == 3}
    assert {(n, p) for n in range(5) for p in range(-1, 6)} <= asked
    assert (3, (Step(Op.SET, 4), Step(Op.GET, 5), Step(Op.CLEAR, 5))) in list(every_question())


def test_reference_answers_every_question_rightly() -> None:
    result = hunt_boundary(target("reference"), drawn=20)
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
    assert rule in {finding.name for finding in hunt_boundary(target(buffer), drawn=5).findings}
