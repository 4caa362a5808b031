"""The tuple of oracles, and how an observed case is judged by them."""

from cases.selftest.oracles.written_observations import COMPILED, RIGHT, TRACE, forward
from deepstack_harness.contract.buffer_ref import registered
from deepstack_harness.contract.case import Case
from deepstack_harness.contract.rules import Rule
from deepstack_harness.oracles.all_rules import ORACLES, judge_all
from deepstack_harness.oracles.observed_case import ObservedCase

OBSERVED = ObservedCase(Case("qwen3_vl", registered("reference"), TRACE, COMPILED), forward(RIGHT))


def test_rules_are_judged_in_their_order_all_or_those_named() -> None:
    assert [said.rule for said in judge_all(OBSERVED)] == [oracle.rule for oracle in ORACLES]
    assert [said.rule for said in judge_all(OBSERVED, [Rule.R11, Rule.R0])] == [Rule.R0, Rule.R11]
