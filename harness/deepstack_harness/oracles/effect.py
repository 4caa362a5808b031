"""Effects: what users would notice of a broken rule, as far as the facts tell."""

from collections.abc import Sequence

from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.verdicts import BROKEN, Effect, Judgement
from deepstack_harness.oracles.row_origins import Deviation


def effect_of(judgement: Judgement, deviations: Sequence[Deviation] = ()) -> Effect | None:
    """Return the worst effect that follows from the facts; None for a kept rule, or where none follows.

    `deviations` are those that break the rule.
    """
    if judgement.verdict not in BROKEN:
        return None
    if any(deviation.raised for deviation in deviations):
        return Effect.CRASH
    if judgement.rule is Rule.R0 or any(deviation.is_real for deviation in deviations):
        return Effect.OUTPUT
    if any(deviation.first_row is not None for deviation in deviations):
        return Effect.PADDING
    return Effect.COST if judgement.rule is Rule.R10 else None
