"""All oracles over one observation."""

from collections.abc import Callable
from typing import cast

from harness.case import Case, Judgement, Observation
from harness.registry import ORACLES, resolve

Oracle = Callable[[Case, Observation], Judgement]


def judge_all(case: Case, observation: Observation) -> list[Judgement]:
    """One judgement per rule that has an oracle, in the order of the rules."""
    return [cast(Oracle, resolve("oracle", ORACLES, rule))(case, observation) for rule in ORACLES]
