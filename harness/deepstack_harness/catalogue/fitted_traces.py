"""Traces for adapter classes: what a trace checks that such rows do not have is left out.

Only steps that leave the state of a right buffer as it was go (payloads that it has to refuse), and clears of
a buffer that nothing clears, whose rows behind N are not compared.  A fixed capacity takes the place of the
trace's: counts up to it keep their place in it, and counts above it stay above.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from deepstack_harness.contract.adapter import Adapter
from deepstack_harness.contract.trace import MAY_BE_NEGATIVE, Op, Step, Trace

_OF_INTEGERS = frozenset({"zeros", "constant", "reordered"})
"""Values that integers have too."""


def fitted_traces(traces: Iterable[Trace], adapter: Adapter) -> list[Trace]:
    """Return the traces as the buffer can be asked them, each once, without those that ask nothing more."""
    fitted = filter(None, (fitted_trace(trace, adapter) for trace in traces))
    return list({str(trace): trace for trace in fitted}.values())


def fitted_trace(trace: Trace, adapter: Adapter) -> Trace | None:
    """Return a trace as the buffer can be asked it; None where no step is left that reads or writes."""
    capacity = adapter.capacity or trace.capacity
    steps = tuple(_fitted_steps(trace, adapter, capacity))
    if not any(step.op is not Op.RESIZE for step in steps):
        return None
    return replace(
        trace, capacity=capacity, steps=steps, levels=adapter.levels or trace.levels,
        hidden=adapter.hidden or trace.hidden, dtype=adapter.dtype or trace.dtype,
    )  # fmt: skip


def _fitted_steps(trace: Trace, adapter: Adapter, capacity: int) -> Iterator[Step]:
    for step in trace:
        fitted = _fitted_set(step, adapter) if step.op is Op.SET else step
        if fitted is not None and (adapter.cleared or step.op is not Op.CLEAR):
            yield _within(fitted, trace.capacity, capacity)


def _fitted_set(step: Step, adapter: Adapter) -> Step | None:
    """Return a set as the buffer can be given it; None for a payload that its rows cannot have."""
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
