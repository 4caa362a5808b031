"""Play the cases of a plan in this process, where their buffers may be live objects, and judge them."""

from collections.abc import Iterable

from deepstack_harness.contract.case import PlannedCase
from deepstack_harness.oracles.judged_case import JudgedCase, judge_case
from deepstack_harness.play.in_process import NOTHING_BOUND, Bound
from deepstack_harness.play.play_case import play_case


def judge_here(plan: Iterable[PlannedCase], bound: Bound = NOTHING_BOUND) -> list[JudgedCase]:
    """Play a plan, one case after the other, and judge each.  Raises what `play_case` raises."""
    return [judge_case(planned, play_case(planned.case, bound)) for planned in plan]
