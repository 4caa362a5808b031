"""R2, R3, R4, R5, R8: the rules about rows and calls, judged by one audit of the trace."""

from collections.abc import Sequence

from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.verdicts import Judgement
from deepstack_harness.oracles.base import against, skip
from deepstack_harness.oracles.observed_case import ObservedCase
from deepstack_harness.oracles.row_origins import Deviation


def boundary(observed: ObservedCase) -> Judgement:
    """Judge R2: wrong counts, exceptions and wrong values within the capacity."""
    return _judge(Rule.R2, observed, "no get or clear within the capacity")


def freshness(observed: ObservedCase) -> Judgement:
    """Judge R3: rows of a payload that a later set replaced."""
    return _judge(Rule.R3, observed, "no row of a replaced payload could be read")


def capacity(observed: ObservedCase) -> Judgement:
    """Judge R4: calls above the capacity, and resize."""
    return _judge(Rule.R4, observed, "no step went above the capacity")


def clear(observed: ObservedCase) -> Judgement:
    """Judge R5: rows of a payload that was cleared."""
    return _judge(Rule.R5, observed, "no row of a cleared payload could be read")


def rejection(observed: ObservedCase) -> Judgement:
    """Judge R8: bad calls that were accepted, or changed something though they were rejected."""
    return _judge(Rule.R8, observed, "no step makes a bad call")


def _judge(rule: Rule, observed: ObservedCase, why_skipped: str) -> Judgement:
    audit = observed.audited()
    mine = audit.of(rule)
    if not mine and rule not in audit.judged:
        return skip(rule, "; ".join([why_skipped, *audit.unavailable]))
    unit = mine[0].unit if mine else "rows"
    amount = sum(deviation.amount for deviation in mine if deviation.unit == unit)
    return against(rule, amount, 0, unit, _summary(mine), [deviation.step for deviation in mine])


def _summary(deviations: Sequence[Deviation]) -> str:
    more = f" (and {len(deviations) - 1} more)" if len(deviations) > 1 else ""
    return deviations[0].detail + more if deviations else ""
