"""All oracles over one observation."""

from collections.abc import Callable

from typing_extensions import TypeIs

from deepstack_harness.catalogue.registry import ORACLES
from deepstack_harness.contract.case import Case, Judgement, Observation
from deepstack_harness.contract.rules import Rule
from deepstack_harness.oracles.extensions import refined

Oracle = Callable[[Case, Observation], Judgement]


def judge_all(case: Case, observation: Observation) -> list[Judgement]:
    """Return one judgement per rule that has an oracle, in the order of the rules."""
    return [judge(Rule(rule), case, observation) for rule in ORACLES]


def judge(rule: Rule, case: Case, observation: Observation) -> Judgement:
    """Judge one rule; raises `UsageError` for a rule that has no oracle of the buffer."""
    oracle = ORACLES.load(rule, _is_oracle, "a function that judges a case")
    return refined(oracle(case, observation), case, observation)


def _is_oracle(found: object) -> TypeIs[Oracle]:
    return callable(found)
