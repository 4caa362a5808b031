"""All oracles over one observation."""

from collections.abc import Callable
from typing import cast

from deepstack_harness.catalogue.registry import ORACLES, resolve
from deepstack_harness.contract.case import Case, Judgement, Observation

Oracle = Callable[[Case, Observation], Judgement]


def judge_all(case: Case, observation: Observation) -> list[Judgement]:
    """One judgement per rule that has an oracle, in the order of the rules."""
    return [cast(Oracle, resolve("oracle", ORACLES, rule))(case, observation) for rule in ORACLES]
