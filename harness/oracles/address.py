"""R6: while the generation stays, get answers at the same addresses."""

from itertools import pairwise

from harness.case import Answer, Case, Judgement, Observation
from harness.oracles.base import against, numbered_steps, skip
from harness.rules import Rule


def judge(case: Case, observation: Observation) -> Judgement:
    """How many answers moved without a new generation; a buffer without one promised not to move."""
    seen = [
        (number, step, facts.generation, facts.answer.addresses)
        for number, step, facts in numbered_steps(case, observation)
        if facts.answer is not None and _has_storage(facts.answer)
    ]
    if len(seen) < 2:
        return skip(Rule.R6, "fewer than two answers to compare")
    moved = [
        (number, step)
        for (_, _, before, old), (number, step, after, new) in pairwise(seen)
        if before == after and old != new
    ]
    detail = f"step {moved[0][0]} '{moved[0][1]}' answered from other storage, unannounced" if moved else ""
    return against(Rule.R6, len(moved), 0, "moves", detail)


def _has_storage(answer: Answer) -> bool:
    # An empty slice has no address of its own.
    return bool(answer.rows) and all(
        rows and address for rows, address in zip(answer.rows, answer.addresses, strict=True)
    )
