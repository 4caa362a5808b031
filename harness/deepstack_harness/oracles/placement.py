"""R7: rows come in the dtype and on the device of the hidden states."""

from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.trace import Step
from deepstack_harness.contract.verdicts import Judgement
from deepstack_harness.oracles.base import against, numbered_steps, skip
from deepstack_harness.oracles.observed_case import ObservedCase

Answered = tuple[int, Step, set[tuple[str, str]]]
"""Number of a step, the step, and every (dtype, device) its levels came in."""


def judge(observed: ObservedCase) -> Judgement:
    """Count answers that have a level on another device, or in another dtype."""
    case, observation = observed.case, observed.observation
    wanted = (observation.dtype, observation.device)
    answers = [
        (number, step, set(zip(facts.answer.dtypes, facts.answer.devices, strict=True)))
        for number, step, facts in numbered_steps(case, observation)
        if facts.answer is not None and facts.answer.rows
    ]
    if not answers:
        return skip(Rule.R7, "no get answered with tensors")
    wrong = [answer for answer in answers if answer[2] != {wanted}]
    detail = _describe(wrong[0], wanted) + _mended(wrong[-1], answers) if wrong else ""
    return against(Rule.R7, len(wrong), 0, "answers", detail, [number for number, *_ in wrong])


def _describe(answer: Answered, wanted: tuple[str, str]) -> str:
    number, step, found = answer
    elsewhere = " and ".join(f"{dtype} on {device}" for dtype, device in sorted(found - {wanted}))
    return f"step {number} '{step}' answered in {elsewhere}, the hidden states are in {' on '.join(wanted)}"


def _mended(last: Answered, answers: list[Answered]) -> str:
    """Return a hint where later answers were right, as they are where the first set moves the levels."""
    later = [(number, step) for number, step, _ in answers if number > last[0]]
    return f"; right from step {later[0][0]} '{later[0][1]}' on" if later else ""
