"""An oracle that refines R4: storage of this package's buffers grows to whole blocks."""

from block_buffers import BLOCK
from deepstack_harness.contract.oracles.trace_audit import ObservedCase
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.verdicts import Judgement, Verdict


def whole_blocks(observed: ObservedCase) -> Judgement:
    """Judge the capacity after each step; skip buffers of others, which promise nothing about blocks."""
    case = observed.case
    if not case.buffer.name.startswith("blocks"):
        return Judgement(Rule.CAPACITY, Verdict.SKIP, detail="not a block buffer")
    for number, facts in enumerate(observed.observation.steps, 1):
        grown = facts.capacity > case.trace.capacity
        if grown and facts.capacity % BLOCK:
            detail = f"step {number} '{facts.step}' grew to {facts.capacity} rows, not to blocks of {BLOCK}"
            return Judgement(Rule.CAPACITY, Verdict.FAIL, facts.capacity % BLOCK, 0, "rows", detail)
    return Judgement(Rule.CAPACITY, Verdict.PASS)
