"""Controls: buffers of ours, played behind a source in its worker, show that this worker still measures.

Code under test shares a process with the code that measures it, and may replace that code, on purpose or
by accident.  Judging is out of its reach.  Behind each source `reference` has to pass in the same process,
and a mutant of each rule has to be caught.  This detects a worker that measures nothing any more; it does
not detect code that lets go of the harness before the controls, or that knows them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from deepstack_harness.auditing.judged_plan import judge_plan
from deepstack_harness.auditing.standing import Standing
from deepstack_harness.catalogue.matrix import Where, plan_audit
from deepstack_harness.catalogue.mutants import MUTANTS
from deepstack_harness.contract.buffer_ref import registered
from deepstack_harness.contract.case import PlannedCase
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.verdicts import Verdict
from deepstack_harness.errors import HarnessError
from deepstack_harness.oracles.judged_case import JudgedCase
from deepstack_harness.play.case_worker import CaseWorker

_RIGHT = "reference"
_WHERE = Where("qwen3_vl")
CONTROLS = tuple(
    next(name for name, mutant in MUTANTS.items() if mutant.rule is rule and mutant.arm == "eager")
    for rule in (Rule.R1, Rule.R2, Rule.R3, Rule.R4, Rule.R5, Rule.R8)
)
"""A mutant of each rule that the methods of a buffer keep or break, and that shows without a decoder."""


def failed_control(worker: CaseWorker) -> str | None:
    """Play the controls in a worker that played code under test; return what went wrong, None for nothing."""
    try:
        return _reference_fails(worker) or next(
            filter(None, (_passes(name, worker) for name in CONTROLS)), None
        )
    except HarnessError as error:
        return f"the controls behind it could not be played: {error}"


def unjudged(standing: Standing, why: str) -> Standing:
    """Return a standing whose rows are ERROR: its worker measured wrongly."""
    rows = (replace(row, verdict=Verdict.ERROR, value=None, detail=why) for row in standing.rows)
    return replace(standing, rows=tuple(rows))


def _reference_fails(worker: CaseWorker) -> str | None:
    judged = _judged(_plan(_RIGHT), worker)
    wrong = sorted({rule for one in judged for rule in one.broken})
    if wrong:
        return f"{_NOT_TRUSTED}: '{_RIGHT}', which keeps every rule, breaks {', '.join(wrong)} behind it"
    if not all(one.observation.steps and not one.observation.ended for one in judged):
        return f"{_NOT_TRUSTED}: '{_RIGHT}' cannot be played behind it"
    return None


def _passes(name: str, worker: CaseWorker) -> str | None:
    rule = MUTANTS[name].rule
    for planned in _plan(name):
        if any(rule in one.broken for one in _judged([planned], worker)):
            return None
    return f"{_NOT_TRUSTED}: '{name}', which breaks {rule}, is not caught behind it"


_NOT_TRUSTED = "the worker measures wrongly after it ran this source"


def _plan(name: str) -> list[PlannedCase]:
    return plan_audit(_WHERE, registered(name))


def _judged(plan: Iterable[PlannedCase], worker: CaseWorker) -> Sequence[JudgedCase]:
    return judge_plan(plan, worker)
