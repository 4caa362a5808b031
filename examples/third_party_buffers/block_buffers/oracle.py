"""An oracle that refines R4: storage of this package's buffers grows to whole blocks."""

from block_buffers import BLOCK
from deepstack_harness.contract.case import Case, Judgement, Observation
from deepstack_harness.contract.rules import Rule, Verdict


def whole_blocks(case: Case, observation: Observation) -> Judgement:
    """Judge the capacity after each step; skip buffers of others, which promise nothing about blocks."""
    if not case.revision.startswith("blocks"):
        return Judgement(Rule.R4, Verdict.SKIP, detail="not a block buffer")
    for number, facts in enumerate(observation.steps, 1):
        grown = facts.capacity > case.trace.capacity
        if grown and facts.capacity % BLOCK:
            detail = f"step {number} '{facts.step}' grew to {facts.capacity} rows, not to blocks of {BLOCK}"
            return Judgement(Rule.R4, Verdict.FAIL, facts.capacity % BLOCK, 0, "rows", detail)
    return Judgement(Rule.R4, Verdict.PASS)
