"""Traces for adapter classes: steps that do not fit the rows of such a buffer are left out.

Only steps that leave the state of a right buffer unchanged are left out: payloads that it has to refuse, and
clears of a buffer that is never cleared, whose rows after N are not compared. A buffer of fixed capacity
replaces the capacity of the trace: counts above the old capacity stay as far above the new one, and counts
below it are scaled down where the new one is smaller.
"""

from collections.abc import Iterable
from dataclasses import replace

from deepstack_harness.contract.adapter import Adapter
from deepstack_harness.contract.trace import MAY_BE_NEGATIVE, Op, Step, Trace

_OF_INTEGERS = frozenset({"zeros", "constant", "reordered"})
"""Values that integers have too."""


def fitted_traces(traces: Iterable[Trace], adapter: Adapter) -> list[Trace]:
    """Return the traces that fit the buffer, each once; what leaves no step to judge is left out."""
    fitted = filter(None, (fitted_trace(trace, adapter) for trace in traces))
    return list({str(trace): trace for trace in fitted}.values())


def fitted_trace(trace: Trace, adapter: Adapter) -> Trace | None:
    """Return a trace that fits the buffer; None where no step is left that reads or writes."""
    capacity = adapter.capacity or trace.capacity
    fitted = (_fitted_set(step, adapter) if step.op is Op.SET else step for step in trace)
    steps = tuple(
        _within(step, trace.capacity, capacity)
        for step in fitted
        if step is not None and (adapter.cleared or step.op is not Op.CLEAR)
    )
    if not any(step.op is not Op.RESIZE for step in steps):
        return None
    return replace(
        trace, capacity=capacity, steps=steps, levels=adapter.levels or trace.levels,
        hidden=adapter.hidden or trace.hidden, dtype=adapter.dtype or trace.dtype,
    )  # fmt: skip


def _fitted_set(step: Step, adapter: Adapter) -> Step | None:
    """Return a set that fits the buffer; None for a payload that its rows cannot have."""
    if step.levels is not None and adapter.levels == 1:
        return None
    if step.hidden is not None and adapter.hidden == 1:
        return None
    if step.shape not in (None, "batched") and 1 in (adapter.levels, adapter.hidden):
        return None
    if not adapter.integers:
        return step
    values = step.values if step.values in _OF_INTEGERS else None
    return replace(step, dtype=None, grad=False, values=values)


def _within(step: Step, before: int, capacity: int) -> Step:
    """Return a step of a buffer of `before` rows for one of `capacity` rows."""
    if before == capacity or (step.tokens < 0 and step.op in MAY_BE_NEGATIVE):
        return step
    if step.tokens >= before:
        tokens = capacity + step.tokens - before
    else:
        tokens = step.tokens
        if capacity < before and tokens:
            tokens = max(1, tokens * capacity // before)
    return replace(step, tokens=tokens, spans=step.spans if capacity >= before else None)
