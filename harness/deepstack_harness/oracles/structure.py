"""R1: every get answers with all levels, always tensors, never None."""

from deepstack_harness.contract.plural import plural
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.verdicts import Judgement
from deepstack_harness.oracles.base import against, numbered_steps, skip
from deepstack_harness.oracles.observed_case import ObservedCase


def judge(observed: ObservedCase) -> Judgement:
    """Count answers that lack a level; a model without a vision tower has to answer None, always."""
    case, observation = observed.case, observed.observation
    answers = [
        (number, step, facts.answer)
        for number, step, facts in numbered_steps(case, observation)
        if facts.answer is not None and step.tokens >= 0  # a negative count should not be answered at all: R8
    ]
    if not answers:
        return skip(Rule.R1, "no get answered")
    wanted = observation.levels if observation.vision else 0
    wrong = [(number, step, answer) for number, step, answer in answers if len(answer.rows) != wanted]
    detail = ""
    if wrong:
        number, step, answer = wrong[0]
        # An engine that hands its decoder an empty tuple is told apart from one whose get answers None.
        what = "None" if answer.structure == "none" else plural(len(answer.rows), "level")
        detail = f"step {number} '{step}' was answered with {what}, not with {plural(wanted, 'tensor')}"
    return against(Rule.R1, len(wrong), 0, "answers", detail, [number for number, *_ in wrong])
