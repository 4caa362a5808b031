"""Simpler forms of a trace: settings of its buffer and options of its payloads left out one by one."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from deepstack_harness.contract.trace import SECOND, Trace

_SETTINGS = ("levels", "hidden", "dtype", "mode")
_OPTIONS: dict[str, Any] = {
    "spans": None, "layout": None, "dtype": None, "values": None, "grad": False, "fail": None,
}  # fmt: skip

Change = tuple[int | None, str]
"""Number of a step, None for the whole trace, and what it loses."""


def changes(trace: Trace) -> Iterator[Change]:
    """Iterate over what may be left out of a trace."""
    yield from ((None, key) for key in _SETTINGS if getattr(trace, key) is not None)
    if trace.buffers > 1:
        yield None, "buffers"
    for index, step in enumerate(trace):
        yield from ((index, key) for key, usual in _OPTIONS.items() if getattr(step, key) != usual)


def without(trace: Trace, change: Change) -> Trace | None:
    """Return the trace without a setting or option; None where it has become too short to have it."""
    index, key = change
    if index is None:
        return _on_one_buffer(trace) if key == "buffers" else replace(trace, **{key: None})  # type: ignore[arg-type]
    if index >= len(trace.steps):
        return None
    simpler = replace(trace.steps[index], **{key: _OPTIONS[key]})
    return replace(trace, steps=(*trace.steps[:index], simpler, *trace.steps[index + 1 :]))


def _on_one_buffer(trace: Trace) -> Trace | None:
    """Return the trace without its steps on the second buffer; None if it has no others."""
    steps = tuple(step for step in trace if step.on != SECOND)
    return replace(trace, steps=steps, buffers=1) if steps else None
