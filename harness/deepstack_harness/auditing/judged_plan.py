"""Play the cases of a plan in a worker, and judge them here."""

from collections.abc import Iterable

from deepstack_harness.contract.case import PlannedCase
from deepstack_harness.oracles.judged_case import JudgedCase, judge_case, unjudged_case
from deepstack_harness.play.case_worker import CaseWorker, observation_of
from deepstack_harness.play.source_class import SourceClass

MOST_ENDS = 3
"""Workers that one class may end before the rest of its cases is left out: each may take its whole time."""


def judge_plan(
    plan: Iterable[PlannedCase], worker: CaseWorker, source: SourceClass | None = None
) -> list[JudgedCase]:
    """Play a plan, one case after the other, and judge each.

    `source` is the class of a source that all cases are about.  A class that has ended its worker three
    times is given up: the cases behind are not judged.  Raises the errors that the worker raised.
    """
    before, judged = worker.ends, []
    for planned in plan:
        if worker.ends - before < MOST_ENDS:
            seen = observation_of(planned.case, worker.play(planned.case, source))
            judged.append(judge_case(planned, seen))
        else:
            why = f"not played: the process that played other cases was ended {MOST_ENDS} times"
            judged.append(unjudged_case(planned, why))
    return judged
