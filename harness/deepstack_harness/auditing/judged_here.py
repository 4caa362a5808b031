"""Play the cases of a plan in this process, where their buffers may be live objects, and judge them."""

import json
from collections.abc import Iterable

import msgspec

from deepstack_harness.contract.case import PlannedCase
from deepstack_harness.contract.observation import Observation
from deepstack_harness.oracles.judged_case import JudgedCase, judge_case
from deepstack_harness.play.in_process import NOTHING_BOUND, Bound
from deepstack_harness.play.play_case import play_case


def judge_here(plan: Iterable[PlannedCase], bound: Bound = NOTHING_BOUND) -> list[JudgedCase]:
    """Play a plan, one case after the other, and judge each.  Raises what `play_case` raises.

    Oracles see plain JSON values, as from a worker: a size that a live object answered may be an `int` with
    a comparison of its own.
    """
    return [judge_case(planned, _plain(play_case(planned.case, bound))) for planned in plan]


def _plain(seen: Observation) -> Observation:
    return msgspec.convert(json.loads(json.dumps(msgspec.to_builtins(seen))), Observation)
