"""`repro` with an arm of the user's own: a faulty revision is told by its name and its caller."""

import pytest

from deepstack_harness.catalogue.incidents import find
from deepstack_harness.commands.repro import _shown
from deepstack_harness.contract.arm_spec import ArmSpec
from deepstack_harness.contract.buffer_ref import registered
from deepstack_harness.contract.case import Case, PlannedCase
from deepstack_harness.contract.observation import Observation
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.trace import Trace
from deepstack_harness.contract.verdicts import Judgement, Verdict
from deepstack_harness.oracles.judged_case import JudgedCase


@pytest.mark.parametrize(("revision", "faulty"), [("granite_full", True), ("granite_sliced", False)])
@pytest.mark.parametrize("verdict", [Verdict.PASS, Verdict.FAIL])
def test_a_fault_is_shown_by_a_faulty_revision_under_its_caller(
    revision: str, verdict: Verdict, *, faulty: bool
) -> None:
    trace, arm = Trace.parse("cap 8: profile 8; forward 1"), ArmSpec.parse("h200/drop_all/no_size_asserts")
    case = Case("granite4_vision", registered(revision), trace, arm, caller="static_inputs")
    said = (Judgement(Rule.R10, verdict),)
    judged = JudgedCase(PlannedCase(case, None), Observation("float32", "cpu", 4, 8, "", ()), said)
    assert _shown(find("40917"), judged) is (faulty == (verdict is Verdict.FAIL))
