"""What all oracles say in the same way."""

from collections.abc import Iterator

from deepstack_harness.contract.case import Case, Judgement, Observation, StepFacts
from deepstack_harness.contract.rules import Rule, Verdict
from deepstack_harness.contract.trace import Step


def numbered_steps(case: Case, observation: Observation) -> Iterator[tuple[int, Step, StepFacts]]:
    """(number from 1, step, its facts) in order."""
    pairs = zip(case.trace.steps, observation.steps, strict=True)
    return ((number, step, facts) for number, (step, facts) in enumerate(pairs, 1))


def skip(rule: Rule, why: str) -> Judgement:
    """The rule does not apply."""
    return Judgement(rule, Verdict.SKIP, detail=why)


def error(rule: Rule, why: str) -> Judgement:
    """The rule applies and could not be judged."""
    return Judgement(rule, Verdict.ERROR, detail=why)


def against(rule: Rule, value: float, limit: float, unit: str, detail: str = "") -> Judgement:
    """FAIL above the limit, PASS up to it."""
    verdict = Verdict.FAIL if value > limit else Verdict.PASS
    return Judgement(rule, verdict, value, limit, unit, detail)
