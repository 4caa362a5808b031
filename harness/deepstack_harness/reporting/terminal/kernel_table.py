"""The tables of `kernels`: one decoder's kernels, or two beside each other."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import NamedTuple

from deepstack_harness.contract.facts.kernels import GraphCall, Kernel
from deepstack_harness.contract.verdicts import Judgement
from deepstack_harness.kernels.compare import Pair, paired
from deepstack_harness.kernels.costs import Costs
from deepstack_harness.kernels.measurement import Measurement
from deepstack_harness.kernels.subject import Subject
from deepstack_harness.reporting.terminal.output import Column, Output

_NAME = 60
_GIB = 2**30
_PAYLOAD_FIRST = (
    "this decoder reads the payload's size first; vLLM 0.20.0 read the hidden states' first, which runs the "
    "step's rows only on torch 2.13 (family variant hidden_first), so what slowed production down is unproven"
)
_TOTALS: tuple[tuple[str, Callable[[GraphCall], int]], ...] = (
    ("generated kernels", lambda call: len(call.generated)),
    ("largest kernel, points", lambda call: call.largest.points or 0),
    ("points of all", lambda call: call.points),
    ("bytes moved", lambda call: call.bytes),
    ("bytes that must move", lambda call: call.ideal_bytes),
    ("rows, at most", lambda call: call.rows),
    (
        "rows given to extern kernels",
        lambda call: max((kernel.rows or 0 for kernel in call.extern), default=0),
    ),
)


def show_measurement(output: Output, subject: Subject, measured: Measurement) -> None:
    """Print every kernel, equal ones once with their number, and the totals."""
    _head(output, subject, measured)
    for call in measured.calls:
        output.line(_bound(call), "bold")
        _kernels(output, call)
        for title, total in _TOTALS:
            output.line(f"{title:<28}  {total(call):>14,}")
        output.line()
    _cost(output, [measured])


def show_comparison(output: Output, subjects: Sequence[Subject], measured: Sequence[Measurement]) -> None:
    """Print totals with their ratios, then the kernels that differ."""
    _head(output, subjects[0], measured[0])
    one, other = (measurement.calls[-1] for measurement in measured)
    names = [subject.revision for subject in subjects]
    width = max(14, *map(len, names))
    columns = [Column(28), Column(width, right=True), Column(width, right=True), Column(8, right=True)]
    output.row(columns, ["", *names, "ratio"], "dim")
    output.row(
        columns, ["size of the largest", *(call.largest.symbolic_points or "" for call in (one, other)), ""]
    )
    for title, total in _TOTALS:
        left, right = total(one), total(other)
        output.row(columns, [title, f"{left:,}", f"{right:,}", _ratio(left, right)])
    output.line()
    _differences(output, paired(one, other))
    _cost(output, measured)


def show_judgement(output: Output, subject: Subject, said: Judgement) -> None:
    """Print whether the revision keeps rule R10 in this step, with figure and limit."""
    figure = "" if said.value is None else f", {said.value:,.0f} {said.unit} against {said.limit:,.0f}"
    line = f"{said.rule} of {subject.revision}: {said.verdict.word}{figure}; {said.detail}"
    output.line(line, said.verdict.style or "green")


def show_costs(output: Output, costs: Costs) -> None:
    """Print each step in milliseconds, with the two ratios."""
    output.line(
        f"decode steps of {costs.family}, {costs.dtype}, {costs.device}, torch {costs.torch}, one thread; "
        f"milliseconds, the minimum of {costs.repetitions} alternating measurements"
    )
    output.line()
    columns = [Column(width, right=True) for width in (8, 6, 12, 9, 8, 11, 18)]
    headings = ["capacity", "tokens", "whole buffer", "sliced", "ratio", "no payload", "zeros to skipping"]
    output.row(columns, headings, "dim")
    for step in costs.steps:
        times = [f"{1000 * seconds:.2f}" for seconds in (step.full, step.sliced, step.skipped)]
        full, sliced, skipped = times
        cells = [str(step.capacity), str(step.tokens), full, sliced, f"{step.extra_rows:.1f}x", skipped]
        output.row(columns, [*cells, f"{step.zeros:.2f}x"])


def _head(output: Output, subject: Subject, measured: Measurement) -> None:
    traced = "sizes compiled in" if subject.static else f"traced with {subject.profile_tokens} rows"
    made_with = f"torch {measured.torch}" + (f", triton {measured.triton}" if measured.triton else "")
    output.line(
        f"{measured.family}, {subject.dtype}, {traced}, called with {subject.tokens} of {subject.capacity}; "
        f"{measured.device}, {'run' if subject.runs else 'generated and called, not run'}, {made_with}"
    )
    if "payload_first" in measured.family:
        output.line(_PAYLOAD_FIRST, "dim")
    output.line()


def _bound(call: GraphCall) -> str:
    symbols = ", ".join(f"{name} = {value}" for name, value in sorted(call.symbols.items()))
    return f"graph {call.graph}, {symbols or 'no symbols'}"


def _kernels(output: Output, call: GraphCall) -> None:
    right = [Column(width, right=True) for width in (12, 12, 7, 13, 7)]
    columns = [Column(5, right=True), Column(9), *right, Column(0)]
    output.row(columns, ["times", "kind", "points", "size", "rows", "bytes", "excess", "kernel"], "dim")
    for kernel, times in _counted(call.kernels):
        output.row(columns, [str(times), kernel.kind, *_figures(kernel), _name(kernel)], _style(kernel))
        _candidates(output, kernel)


def _counted(kernels: Iterable[Kernel]) -> list[tuple[Kernel, int]]:
    """Count kernels that are equal to a reader, in the order of the first."""
    seen: dict[tuple[object, ...], list[Kernel]] = {}
    for kernel in kernels:
        seen.setdefault((kernel.kind, _name(kernel), *_figures(kernel), kernel.function), []).append(kernel)
    return [(alike[0], len(alike)) for alike in seen.values()]


def _figures(kernel: Kernel) -> list[str]:
    points = "" if kernel.points is None else f"{kernel.points:,}"
    rows = "" if kernel.rows is None else f"{kernel.rows:,}"
    return [
        points,
        kernel.symbolic_points or "",
        rows,
        f"{kernel.bytes:,}",
        _ratio(kernel.bytes, kernel.ideal_bytes),
    ]


def _candidates(output: Output, kernel: Kernel) -> None:
    for one in kernel.candidates:
        output.line(
            f"       {one.config}: grid {'x'.join(map(str, one.grid))}, {one.registers} registers, "
            f"{one.spills} bytes spilled, {one.shared} bytes shared",
            "dim",
        )


def _differences(output: Output, pairs: Sequence[Pair]) -> None:
    """Print kernels that differ in size, equal pairs once; left and right as in the totals."""
    shown = [(_shown(pair.one), _shown(pair.other)) for pair in pairs]
    differing = [(one, other) for one, other in shown if one.figures != other.figures]
    output.line(f"{len(pairs) - len(differing)} kernels are equal, {len(differing)} differ")
    if not differing:
        return
    right = [Column(width, right=True) for width in (12, 12, 7, 7, 13, 13, 8)]
    columns = [Column(5, right=True), *right, Column(0)]
    output.row(columns, ["times", "points", "", "rows", "", "bytes", "", "ratio", "kernel"], "dim")
    for (one, other), times in Counter(differing).items():
        figures = chain.from_iterable(zip(one.figures, other.figures, strict=True))
        output.row(
            columns,
            [
                str(times),
                *figures,
                _ratio(one.bytes, other.bytes) if one.bytes else "",
                one.name or other.name,
            ],
        )
    output.line()


class _Shown(NamedTuple):
    """One side of a pair as it is shown; empty where there is no such kernel."""

    figures: tuple[str, str, str] = ("-", "-", "-")
    bytes: int = 0
    name: str = ""


def _shown(kernel: Kernel | None) -> _Shown:
    if kernel is None:
        return _Shown()
    points, _, rows, moved, _ = _figures(kernel)
    return _Shown((points, rows, moved), kernel.bytes, _name(kernel))


def _style(kernel: Kernel) -> str:
    return "red" if kernel.bytes > kernel.ideal_bytes else ""


def _name(kernel: Kernel) -> str:
    name = kernel.kernel
    return name if len(name) <= _NAME else f"{name[: _NAME - 2]}.."


def _ratio(one: int, other: int) -> str:
    return f"{one / other:.1f}x" if other else ""


def _cost(output: Output, measured: Sequence[Measurement]) -> None:
    seconds = sum(one.cost.seconds for one in measured)
    busy = sum(one.cost.processor_seconds for one in measured)
    peak = max(one.cost.peak_bytes for one in measured)
    output.line(f"took {seconds:.1f} s ({busy:.1f} s of processor time), {peak / _GIB:.1f} GiB at most")
