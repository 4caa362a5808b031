"""R10: attention and kernels are given P rows, never the capacity, counted at run time."""

from collections.abc import Iterator
from typing import NamedTuple

from deepstack_harness.contract.case import Case
from deepstack_harness.contract.facts.accesses import AccessFacts, KernelAccess, rows_in_words
from deepstack_harness.contract.observation import Observation
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.trace import RUNS_DECODER, Step
from deepstack_harness.contract.verdicts import Judgement
from deepstack_harness.oracles.base import against, numbered_steps, skip
from deepstack_harness.oracles.observed_case import ObservedCase


class _Work(NamedTuple):
    """Rows that one step processed, and who did."""

    number: int
    step: Step
    rows: int
    who: str


def judge(observed: ObservedCase) -> Judgement:
    """Judge the step in which attention, or a kernel on a payload, had the largest multiple of P rows."""
    case, observation = observed.case, observed.observation
    runs = list(_runs(case, observation))
    if not runs:
        return skip(Rule.R10, _why_not(case, observation))
    number, step, rows, who = max(runs, key=lambda run: run.rows / _asked(case, run.step))
    asked = _asked(case, step)
    detail = f"step {number} '{step}': {who} {rows} rows for {asked}, {rows / asked:.3g} times"
    return against(Rule.R10, rows, asked, "rows", detail)


def payload_rows(facts: AccessFacts) -> tuple[int, KernelAccess | None]:
    """Return one more than the last payload row that a kernel touched, and the access that did so first.

    Rows outside of the payload itself are no work but a fault of memory: R14.
    """
    touched = [(_last(access), access) for access in facts.accesses if access.tensor.startswith("payload[")]
    return max(touched, key=lambda one: one[0], default=(0, None))


def _runs(case: Case, observation: Observation) -> Iterator[_Work]:
    for number, step, facts in numbered_steps(case, observation):
        if step.op in RUNS_DECODER and facts.attended is not None:
            yield _Work(number, step, facts.attended, "attention was given")
        if facts.accesses is not None and facts.accesses.accesses:
            rows, access = payload_rows(facts.accesses)
            yield _Work(number, step, rows, _touched(facts.accesses, access))


def _touched(facts: AccessFacts, access: KernelAccess | None) -> str:
    share = f"{facts.share:.0%} of the bytes were measured"
    if access is None:
        return f"no kernel touched a payload ({share}):"
    does = "read" if access.read else "wrote"
    rows = rows_in_words((*access.read, *access.written))
    return f"kernel {access.kernel} {does} {rows} of {access.tensor} ({share}),"


def _last(access: KernelAccess) -> int:
    return max((end for _, end in (*access.read, *access.written)), default=0)


def _asked(case: Case, step: Step) -> int:
    """Return P, padded to a multiple of the ranks that share a step; at least 1."""
    ranks = case.arm.ranks
    return max(1, -(-step.tokens // ranks) * ranks)


def _why_not(case: Case, observation: Observation) -> str:
    if any(facts.distances is not None for facts in observation.steps):
        family = case.family.partition(":")[0]
        return f"attention of family '{case.family}' reports no rows; that of '{family}:opaque' does"
    return "no step ran the decoder"
