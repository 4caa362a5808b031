"""Traces for adapted buffers: what a trace asks that such a buffer cannot be asked is left out.

Only steps that leave the state of a right buffer as it was go (calls that it has to refuse, a resize), and
clears of a buffer that no method clears, whose rows behind N are not compared.  A fixed capacity takes the
place of the trace's: counts up to it keep their place in it, and counts above it stay above.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from deepstack_harness.contract.adapter import Adapter, ArgRole, MethodCall
from deepstack_harness.contract.trace import MAY_BE_NEGATIVE, Op, Step, Trace

_OF_INTEGERS = frozenset({"zeros", "constant", "reordered"})
"""Values that integers have too."""


def fitted_traces(traces: Iterable[Trace], adapter: Adapter) -> list[Trace]:
    """Return the traces as the buffer can be asked them, each once, without those that ask nothing more."""
    fitted = filter(None, (fitted_trace(trace, adapter) for trace in traces))
    return list({str(trace): trace for trace in fitted}.values())


def fitted_trace(trace: Trace, adapter: Adapter) -> Trace | None:
    """Return a trace as the buffer can be asked it; None where no step is left that reads or writes."""
    capacity = adapter.fixed or trace.capacity
    steps = tuple(_fitted_steps(trace, adapter, capacity))
    if not any(step.op is not Op.RESIZE for step in steps):
        return None
    shape = adapter.shape
    levels = (shape.levels or trace.levels) if shape.has_levels else 1
    hidden = (shape.hidden or trace.hidden) if shape.has_hidden else 1
    return replace(
        trace,
        capacity=capacity,
        steps=steps,
        levels=levels,
        hidden=hidden,
        dtype=adapter.dtype or trace.dtype,
    )


def _fitted_steps(trace: Trace, adapter: Adapter, capacity: int) -> Iterator[Step]:
    methods: dict[Op, MethodCall | None] = {
        Op.GET: adapter.get, Op.CLEAR: adapter.clear, Op.RESIZE: adapter.resize,
    }  # fmt: skip
    for step in trace:
        method = methods.get(step.op)
        if step.op in methods and method is None:
            continue
        counted = method is None or method.takes(ArgRole.COUNT)
        if not counted and (step.tokens < 0 or step.count is not None):
            continue
        fitted = _fitted_set(step, adapter) if step.op is Op.SET else step
        if fitted is not None:
            yield _within(fitted, trace.capacity, capacity)


def _fitted_set(step: Step, adapter: Adapter) -> Step | None:
    """Return a set as the buffer can be given it; None for a payload that its shape cannot have."""
    shape = adapter.shape
    stacked = shape.dims == ("levels", "N", "hidden") and not shape.listed
    if step.levels is not None and (not shape.has_levels or (shape.listed and not step.levels)):
        return None
    if step.hidden is not None and not shape.has_hidden:
        return None
    if step.shape is not None and not stacked and (step.shape != "batched" or shape.listed):
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
