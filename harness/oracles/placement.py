"""R7: rows come in the dtype and on the device of the hidden states."""

from harness.case import Case, Judgement, Observation
from harness.oracles.base import against, numbered_steps, skip
from harness.rules import Rule


def judge(case: Case, observation: Observation) -> Judgement:
    """How many answers have a level elsewhere, or in another dtype."""
    wanted = (observation.dtype, observation.device)
    answers = [
        (number, step, set(zip(facts.answer.dtypes, facts.answer.devices, strict=True)))
        for number, step, facts in numbered_steps(case, observation)
        if facts.answer is not None and facts.answer.rows
    ]
    if not answers:
        return skip(Rule.R7, "no get answered with tensors")
    wrong = [(number, step, found - {wanted}) for number, step, found in answers if found != {wanted}]
    detail = ""
    if wrong:
        number, step, found = wrong[0]
        detail = f"step {number} '{step}' answered in {sorted(found)}, the hidden states are in {wanted}"
    return against(Rule.R7, len(wrong), 0, "answers", detail)
