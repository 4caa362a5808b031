"""Axes of inputs, and traces that play every pair of their values: faults often need two of them at once.

A covering array (of `covertable`) chooses few traces in which each pair of values of two axes is played. Its
first traces have the most pairs: `check` plays `DAILY` of them, and `check --thorough` all. `axes_of` returns
the axes in which a trace has an unusual value, so that `selftest` can report which axis finds which fault.
"""

from collections.abc import Iterator, Mapping
from functools import cache
from itertools import islice
from typing import Any

from covertable import make_async

from deepstack_harness.contract.trace import INTEGERS, Op, Step, Trace

DAILY = 24
"""Traces of the covering array that `check` plays: each value of each axis is in one of them."""
_CAPACITY = 13
"""Rows of the buffer of a drawn trace: a prime, so that no padding to a power of two fits by chance."""
_MANY_CALLS, _DAY = 20, 86_400
_NONE = ""
_WRONG_LEVELS, _WRONG_HIDDEN, _BOTH, _SAME_PRODUCT = "levels", "hidden", "both", "product"

AXES: Mapping[str, tuple[Any, ...]] = {
    "levels": (3, 1, 2, 4, 5, 8),
    "width": (128, 1, 8, 31, 33, 100, 520, 2049),
    "buffer dtype": ("float32", "bfloat16", "float16", "float64"),
    "mode": (_NONE, "inference"),
    "layout": (
        _NONE, "permuted", "strided", "expanded", "slice", "channels", "transposed", "sparse", "one_level",
    ),
    "payload dtype": (_NONE, "float32", "bfloat16", "float16", "float64"),
    "values": (
        _NONE, "inf", "nan", "nans", "huge", "fine", "subnormal", "negzero", "constant", "zeros", "mixed",
        "reordered",
    ),
    "gradient": (_NONE, "grad"),
    "rows": (5, 1, 12, _CAPACITY, 17),
    "before": (_NONE, "longer", "as long", "cleared", "cleared in part", "not finite", "empty"),
    "refused": (
        _NONE, _WRONG_LEVELS, _WRONG_HIDDEN, _BOTH, _SAME_PRODUCT, "flat", "joined", "swapped", "transposed",
        "batched",
    ),
    "calls": (_NONE, _MANY_CALLS),
    "time": (_NONE, 90, _DAY),
    "end": ("clear", "clear less", "clear none", "shorter", "none", "resize", "read more"),
}  # fmt: skip
"""Values of each axis, the usual one first.

Payloads of integers, which have neither NaN nor a gradient, have traces of their own (`catalogue.traces`).
"""


@cache
def daily_pairs() -> tuple[str, ...]:
    """Return the traces that `check` plays: those with the most pairs."""
    return tuple(map(_trace, islice(covering_array(), DAILY)))


@cache
def other_pairs() -> tuple[str, ...]:
    """Return the traces that have the rest of the pairs, for `check --thorough`."""
    return tuple(map(_trace, islice(covering_array(), DAILY, None)))


def covering_array() -> Iterator[Mapping[str, Any]]:
    """Iterate over the rows: a value for each axis, such that every pair is in one of them."""
    return iter(make_async(dict(AXES)))


def _trace(row: Mapping[str, Any]) -> str:
    header = f"cap {_CAPACITY} levels {row['levels']} hidden {row['width']} dtype {row['buffer dtype']}"
    mode = f" mode {row['mode']}" if row["mode"] else ""
    return f"{header}{mode}: {'; '.join(_steps(row))}"


def _steps(row: Mapping[str, Any]) -> Iterator[str]:
    """Iterate over the steps: what was there before, a refused payload, the payload, and how it ends."""
    everything, tokens = f"get {_CAPACITY}", row["rows"]
    before = {
        "longer": [f"set {_CAPACITY}"],
        "as long": [f"set {tokens}"],
        "cleared": [f"set {_CAPACITY}", everything, f"clear {_CAPACITY}"],
        "cleared in part": [f"set {_CAPACITY}", everything, "clear 2"],
        "not finite": [f"set {_CAPACITY} values=mixed"],
        "empty": [f"set {_CAPACITY}", everything, "set 0"],
    }
    yield from [*before.get(row["before"], []), everything]
    if row["refused"]:
        yield f"set 2 {_refused(row)}"
        yield everything
    options = [f"{key}={row[axis]}" for key, axis in _OPTIONS.items() if row[axis]]
    yield " ".join([f"set {tokens}", *options, *([row["gradient"]] if row["gradient"] else [])])
    yield everything
    often = [f"calls={row['calls']}"] if row["calls"] else []
    late = [f"after={row['time']}"] if row["time"] else []
    yield " ".join([f"get {tokens}", *often, *late])
    yield "get 0"
    yield "get 1"  # otherwise a clear of 0 rows would follow a get of 0: the end of a micro-batch
    ends = {
        "clear": [f"clear {max(tokens, _CAPACITY)}"],
        "clear less": ["get 1", f"clear {max(0, tokens - 2)}"],
        "clear none": ["clear 0"],
        "shorter": [f"set {max(0, tokens - 3)}"],
        "none": ["set 0"],
        "resize": [f"resize {tokens + 5}", f"get {tokens}"],
        "read more": [f"get {tokens + 9}"],
    }
    yield from ends[row["end"]]
    yield everything


_OPTIONS = {"layout": "layout", "dtype": "payload dtype", "values": "values"}


def _refused(row: Mapping[str, Any]) -> str:
    """Return the options of a payload of 2 tokens that a buffer of this row's sizes has to refuse."""
    levels, width = row["levels"], row["width"]
    kind = row["refused"]
    if kind == _WRONG_LEVELS:
        return f"levels={levels + 1}"
    if kind == _WRONG_HIDDEN:
        return f"hidden={width + 1}"
    if kind == _BOTH or (kind == _SAME_PRODUCT and levels == width):
        return f"levels={levels + 1} hidden={width + 1}"
    if kind == _SAME_PRODUCT:
        return (
            f"levels={2 * levels} hidden={width // 2}"
            if width % 2 == 0
            else f"levels={width} hidden={levels}"
        )
    # Of two tokens a swap of two levels, or of two columns, changes nothing.
    same = {"swapped": levels, "transposed": width}.get(kind) == 2
    return f"shape={'flat' if same else kind}"


_USUAL_ROWS = 32_768
"""Rows that fit into 16 bits with a sign."""


AXES_OF_TRACES = (
    "levels", "width", "buffer dtype", "mode", "second buffer", "layout", "payload dtype", "integers",
    "values", "gradient", "spans", "wrong shape", "failing allocation", "calls", "time", "many rows",
)  # fmt: skip
"""Axes that a trace may be unusual in, in the order in which they are shown."""


def axes_of(trace: Trace) -> frozenset[str]:
    """Return the axes in which a trace has another than the usual value."""
    header = {
        "levels": trace.levels,
        "width": trace.hidden,
        "buffer dtype": trace.dtype,
        "mode": trace.mode,
        "second buffer": trace.buffers > 1,
    }
    used = {axis for axis, value in header.items() if value}
    for step in trace:
        used.update(_axes_of_step(step, trace))
    return frozenset(used)


def _axes_of_step(step: Step, trace: Trace) -> Iterator[str]:
    both = step.levels is not None and step.hidden is not None
    integers = step.dtype in INTEGERS
    options = {
        "layout": step.layout,
        "payload dtype": step.dtype and not integers,
        "integers": integers,
        "values": step.values,
        "gradient": step.grad,
        "spans": step.spans is not None,
        "wrong shape": step.shape or both,
        "failing allocation": step.fail,
        "calls": step.calls,
        "time": step.after,
        "many rows": step.op is not Op.RELOAD and max(step.tokens, trace.capacity) > _USUAL_ROWS,
    }
    return (axis for axis, value in options.items() if value)
