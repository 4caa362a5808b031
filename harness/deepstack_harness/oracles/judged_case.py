"""Judged cases: a planned case, what was observed of it, and what every oracle says."""

from collections.abc import Collection
from dataclasses import dataclass

from typing_extensions import override

from deepstack_harness.contract.case import Case, PlannedCase
from deepstack_harness.contract.observation import Observation
from deepstack_harness.contract.row import Row, beside_expectation, row_of_case
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.verdicts import Judgement, RuleVerdicts, Verdict
from deepstack_harness.oracles.all_rules import ORACLES, judge_all
from deepstack_harness.oracles.base import error
from deepstack_harness.oracles.observed_case import ObservedCase


@dataclass(frozen=True)
class JudgedCase(RuleVerdicts):
    """One case that was played and judged."""

    planned: PlannedCase
    observation: Observation
    judgements: tuple[Judgement, ...]

    @property
    def case(self) -> Case:
        """The case that was played."""
        return self.planned.case

    @property
    @override
    def verdicts(self) -> Collection[tuple[Rule, Verdict]]:
        return [(said.rule, said.verdict) for said in self.judgements]

    @property
    def as_expected(self) -> bool:
        """Say whether exactly the rules that the plan names are broken, and every rule could be judged."""
        return self.breaks_exactly(self.planned.must_break)

    def rows(self) -> list[Row]:
        """Return one row per rule, beside no expectation."""
        torch, incident = self.observation.torch, self.planned.incident
        return [row_of_case(self.case, said, torch, incident) for said in self.judgements]

    def rows_beside_plan(self) -> list[Row]:
        """Return one row per rule, beside what the plan says of the rule."""
        return [beside_expectation(row, broken=self.planned.expects(row.rule)) for row in self.rows()]


def judge_case(
    planned: PlannedCase, observation: Observation, rules: Collection[Rule] | None = None
) -> JudgedCase:
    """Judge what was observed of a case by all rules, or by `rules` alone."""
    return JudgedCase(planned, observation, tuple(_judgements(planned.case, observation, rules)))


def unjudged_case(planned: PlannedCase, why: str, torch: str = "") -> JudgedCase:
    """Return a case that did not come to its end: every rule is ERROR."""
    said = tuple(error(one.rule, why) for one in ORACLES)
    nothing = Observation(planned.case.dtype, planned.case.device, 0, 0, torch, (), error=why)
    return JudgedCase(planned, nothing, said)


def _judgements(case: Case, observation: Observation, rules: Collection[Rule] | None) -> list[Judgement]:
    """Judge by all oracles; where ranks died or hung, every rule is ERROR, and R9 has what they printed."""
    if observation.steps:
        said = judge_all(ObservedCase(case, observation), rules)
        return said if observation.ended is None else [_cut_short(one, observation.ended) for one in said]
    why = observation.error or "no step was played"
    return [
        error(one.rule, why if one.rule is Rule.R9 else why.splitlines()[0])
        for one in ORACLES
        if rules is None or one.rule in rules
    ]


def _cut_short(judgement: Judgement, ended: str) -> Judgement:
    """Return ERROR for a rule that nothing put to the test before the process ended."""
    return error(judgement.rule, ended) if judgement.verdict is Verdict.SKIP else judgement
