"""R10: attention is given P rows, never the capacity, counted at run time."""

from deepstack_harness.contract.case import Case, Judgement, Observation
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.trace import RUNS_DECODER, Step
from deepstack_harness.oracles.base import against, numbered_steps, skip


def judge(case: Case, observation: Observation) -> Judgement:
    """The rows that opaque attention was given in the step with the largest factor above its P."""
    runs = [
        (number, step, facts.attended)
        for number, step, facts in numbered_steps(case, observation)
        if step.op in RUNS_DECODER and facts.attended is not None
    ]
    if not runs:
        return skip(Rule.R10, _why_not(case, observation))
    number, step, rows = max(runs, key=lambda run: run[2] / _asked(case, run[1]))
    asked = _asked(case, step)
    detail = f"step {number} '{step}': attention was given {rows} rows for {asked}, {rows / asked:.3g} times"
    return against(Rule.R10, rows, asked, "rows", detail)


def _asked(case: Case, step: Step) -> int:
    """P, as ranks that share a step pad it to a multiple of their number; at least 1."""
    ranks = case.arm.ranks
    return max(1, -(-step.tokens // ranks) * ranks)


def _why_not(case: Case, observation: Observation) -> str:
    if any(facts.distances is not None for facts in observation.steps):
        family = case.family.partition(":")[0]
        return f"attention of family '{case.family}' reports no rows; that of '{family}:opaque' does"
    return "no step ran the decoder"
