"""The tuple of oracles and the registry's summaries, which name the same functions."""

import pytest

from cases.selftest.oracles.written_observations import COMPILED, RIGHT, TRACE, forward
from deepstack_harness.catalogue import registry
from deepstack_harness.contract.buffer_ref import registered
from deepstack_harness.contract.case import Case
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.verdicts import Judgement, Verdict
from deepstack_harness.oracles.all_rules import ORACLES, every_oracle, judge_all
from deepstack_harness.oracles.observed_case import ObservedCase

OBSERVED = ObservedCase(Case("qwen3_vl", registered("reference"), TRACE, COMPILED), forward(RIGHT))


def test_the_registry_lists_our_oracles() -> None:
    listed = {rule: registry.resolve("oracle", registry.ORACLES, rule) for rule in registry.ORACLES}
    assert listed == {oracle.rule: oracle.judge for oracle in ORACLES}


def test_rules_are_judged_in_their_order_all_or_those_named() -> None:
    assert [said.rule for said in judge_all(OBSERVED)] == [oracle.rule for oracle in ORACLES]
    assert [said.rule for said in judge_all(OBSERVED, [Rule.R11, Rule.R0])] == [Rule.R0, Rule.R11]


def always(observed: ObservedCase) -> Judgement:
    return Judgement(Rule.R12, Verdict.PASS, detail=str(observed.case.trace))


def test_an_oracle_of_another_package_is_asked_too(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = registry.Entry(f"{__name__}:always", "a figure")
    monkeypatch.setattr(registry, "ORACLES", {**registry.ORACLES, "R12": entry})
    assert every_oracle()[-1].rule is Rule.R12
    assert judge_all(OBSERVED)[-1] == always(OBSERVED)
