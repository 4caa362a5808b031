"""The audit of a trace: shared by the oracles of an observation, growing with its trace, and no other's."""

from dataclasses import replace
from itertools import chain

import pytest

from cases.selftest.play.playing import case_of, observe
from deepstack_harness.contract.case import Case
from deepstack_harness.contract.observation import Observation
from deepstack_harness.contract.oracles.judge import judge_all
from deepstack_harness.contract.oracles.trace_audit import ContractAudit, ObservedCase
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.trace import Trace
from deepstack_harness.play.model import Model

FAULTY = "cap 16: set 9; get 9; set 3; get 9; clear 1; get 9; get -1; clear 9; set 16; get 20"


@pytest.fixture(scope="module")
def played(qwen: Model) -> tuple[Case, Observation]:
    return case_of(FAULTY, "pr43617"), observe(qwen, FAULTY, "pr43617")


def upto(steps: int, case: Case, seen: Observation) -> tuple[Case, Observation]:
    """Only the first steps."""
    trace = Trace(case.trace.capacity, case.trace.steps[:steps])
    return replace(case, trace=trace), replace(seen, steps=seen.steps[:steps])


def test_an_audit_that_grows_finds_what_a_new_one_finds(played: tuple[Case, Observation]) -> None:
    audit = ContractAudit()
    for steps in range(1, len(played[0].trace.steps) + 1):
        part = upto(steps, *played)
        assert judge_all(ObservedCase(*part, audit)) == judge_all(ObservedCase(*part))
    assert {deviation.rule for deviation in audit.deviations} == {
        Rule.FRESHNESS,
        Rule.CAPACITY,
        Rule.CLEAR,
        Rule.REJECTION,
    }


def test_the_order_in_which_observations_are_judged_changes_nothing(
    qwen: Model, played: tuple[Case, Observation]
) -> None:
    other = case_of("cap 16: set 9; get 9; set 3; get 9", "reference")
    pairs = [ObservedCase(*played), ObservedCase(other, observe(qwen, str(other.trace), "reference"))]
    apart = [judge_all(ObservedCase(pair.case, pair.observation)) for pair in pairs]
    rules = [said.rule for said in apart[0]]
    mixed = [judge_all(pair, [rule]) for rule in rules for pair in pairs]
    assert list(chain.from_iterable(mixed[::2])) == apart[0]
    assert list(chain.from_iterable(mixed[1::2])) == apart[1]


def test_an_audit_of_another_trace_is_refused(qwen: Model, played: tuple[Case, Observation]) -> None:
    audit = ContractAudit()
    audit.follow(*played)
    again = observe(qwen, FAULTY, "pr43617")  # the same facts, of another run
    with pytest.raises(ValueError, match="this audit follows another trace than 'cap 16: set 9; get 9"):
        audit.follow(played[0], again)
    with pytest.raises(ValueError, match="another trace"):
        audit.follow(*upto(2, *played))


def test_a_step_is_followed_once(played: tuple[Case, Observation]) -> None:
    audit = ContractAudit()
    for _ in range(3):
        audit.follow(*played)
    once = ContractAudit()
    once.follow(*played)
    assert audit.deviations == once.deviations


def test_rows_that_a_buffer_states_when_it_is_made_are_no_growth(qwen: Model) -> None:
    """A row that is missing below the capacity stated before the first step is R2, not R4."""
    case = case_of("cap 1: get 2", "overstates_capacity")
    audit = ContractAudit()
    audit.follow(case, observe(qwen, str(case.trace), "overstates_capacity"))
    assert {deviation.rule for deviation in audit.deviations} == {Rule.BOUNDARY}


def test_fewer_rows_than_requested_are_promised_all_the_same(qwen: Model) -> None:
    """A capacity of one row less than the constructor was given is a broken R4."""
    case, seen = case_of("cap 4: get 4", "reference"), observe(qwen, "cap 4: get 4", "reference")
    (facts,) = seen.steps
    audit = ContractAudit()
    audit.follow(case, replace(seen, capacity=3, steps=(replace(facts, capacity=3),)))
    assert {deviation.rule for deviation in audit.deviations} == {Rule.CAPACITY}


def test_rows_of_a_model_without_a_vision_tower_are_not_audited(played: tuple[Case, Observation]) -> None:
    case, seen = played
    audit = ContractAudit()
    audit.follow(case, replace(seen, vision=False))
    assert (audit.deviations, audit.chances) == ([], {})
    audit.follow(case, seen)
    assert audit.deviations
