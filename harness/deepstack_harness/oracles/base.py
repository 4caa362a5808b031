"""Helpers of all oracles: numbered steps, and the ways to word a judgement."""

from collections.abc import Iterable, Iterator

from deepstack_harness.contract.case import Case
from deepstack_harness.contract.observation import Observation, StepFacts
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.trace import Step
from deepstack_harness.contract.verdicts import Judgement, Verdict


def numbered_steps(case: Case, observation: Observation) -> Iterator[tuple[int, Step, StepFacts]]:
    """Iterate over (number from 1, step, its facts) in order."""
    pairs = zip(case.trace.steps, observation.steps, strict=True)
    return ((number, step, facts) for number, (step, facts) in enumerate(pairs, 1))


def skip(rule: Rule, why: str) -> Judgement:
    """Return SKIP: the rule does not apply, or nothing put it to the test."""
    return Judgement(rule, Verdict.SKIP, detail=why)


def error(rule: Rule, why: str) -> Judgement:
    """Return ERROR: the rule applies and could not be judged."""
    return Judgement(rule, Verdict.ERROR, detail=why)


def against(
    rule: Rule, value: float, limit: float, unit: str, detail: str = "", steps: Iterable[int] = ()
) -> Judgement:
    """Return FAIL above the limit, PASS up to it; `steps` are those in which the rule was seen broken."""
    verdict = Verdict.FAIL if value > limit else Verdict.PASS
    return Judgement(rule, verdict, value, limit, unit, detail, steps=tuple(sorted(set(steps))))
