"""The tables of `kernels`: generated kernels of one decoder, or of two compared with each other.

`--execute` adds what each launch touched, and `--payload-cost` has the times of decode steps.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, zip_longest

from deepstack_harness.compile.kernel_rows import ExecutedLaunch, ExecutedStep
from deepstack_harness.compile.kernels import Measurement, Pair, Subject, paired
from deepstack_harness.compile.payload_costs import LAYERS, PAYLOAD, TimedPayload, extra_of_model
from deepstack_harness.compile.torch_compat.targets import GPUS, unchecked
from deepstack_harness.contract.facts import GraphCall, Kernel, rows_in_words
from deepstack_harness.contract.verdicts import Judgement
from deepstack_harness.document.blocks import BLANK, Column, Document, Heading, Line, table_line
from deepstack_harness.text import number

_LONGEST_NAME = 60
"""Columns of a kernel's name: Inductor joins the names of all operations that it fuses."""
_GIB = 2**30
"""Bytes of a GiB."""
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


def show_measurement(measured: Measurement) -> Document:
    """Print every kernel, equal ones once with their number, and the totals."""
    yield from _print_measured_head(measured)
    for call in measured.calls:
        symbols = ", ".join(f"{name} = {value}" for name, value in sorted(call.symbols.items()))
        yield Heading(f"graph {call.graph}, {symbols or 'no symbols'}")
        yield from _kernels(call)
        for title, total in _TOTALS:
            yield Line(f"{title:<28}  {total(call):>14,}")
        yield BLANK
    yield from _print_seconds([measured])


def show_comparison(measured: Sequence[Measurement]) -> Document:
    """Print totals with their ratios, then the kernels that differ."""
    yield from _print_measured_head(measured[0])
    first, second = (measurement.calls[-1] for measurement in measured)
    names = [measurement.subject.revision for measurement in measured]
    width = max(14, *map(len, names))
    columns = [
        Column(width=28),
        Column(width=width, right=True),
        Column(width=width, right=True),
        Column(width=8, right=True),
    ]
    yield table_line(columns, ["", *names, "ratio"], "dim")
    yield table_line(
        columns,
        ["size of the largest", *(call.largest.symbolic_points or "" for call in (first, second)), ""],
    )
    for title, total in _TOTALS:
        left, right = total(first), total(second)
        yield table_line(columns, [title, f"{left:,}", f"{right:,}", _ratio(left, right)])
    yield BLANK
    yield from _differences(paired(first, second))
    yield from _print_seconds(measured)


def show_judgement(subject: Subject, judgement: Judgement) -> Document:
    """Print whether the revision passes rule R10 in this step, with figure and limit."""
    value, limit = judgement.value, judgement.limit
    figure = "" if value is None else f", {number(value)} {judgement.unit} against {number(limit)}"
    line = f"{judgement.rule} of {subject.revision}: {judgement.verdict.word}{figure}; {judgement.detail}"
    yield Line(line, judgement.verdict.style or "green")


_PAYLOAD_COLUMNS = (
    Column(width=6, right=True),
    Column(width=28),
    Column(width=5),
    *(Column(width=9, right=True),) * 5,
)


def show_payload_costs(timed: TimedPayload) -> Document:
    """Print the steps of one model in microseconds, with ratios to its step without a payload."""
    model = timed.work.model
    if timed.problem:
        yield Line(f"{timed.work.name}: not timed: {timed.problem}", "red")
        return
    first = timed.rows[0].conditions
    layers = f"{first['layers']} layers" + (f" of {LAYERS[model]}" if model in LAYERS else "")
    yield Line(f"{timed.work.name}: hidden {first['hidden']}, {first['levels']} levels, {layers}")
    yield Line(
        f"{first['dtype']}, {first['device']}, torch {first['torch']}; microseconds a step by "
        f"{first['clock']}, the median of {first['samples']}"
    )
    headings = ("tokens", "arm", "step", "without", "list", "", "tensor", "")
    yield table_line(_PAYLOAD_COLUMNS, headings, "dim")
    payloads = [row for row in timed.rows if row.measure == PAYLOAD]
    for as_list, as_tensor in zip(payloads[::2], payloads[1::2], strict=True):
        names = [str(as_list.conditions[name]) for name in ("tokens", "arm", "step")]
        figures = [f"{as_list.control:.1f}"]
        for row in (as_list, as_tensor):
            figures += [f"{row.value:.1f}", f"{row.ratio:.3f}x"]
        yield table_line(_PAYLOAD_COLUMNS, [*names, *figures])
    shares = [share for row in payloads if (share := extra_of_model(row)) is not None]
    if shares:
        part = f"{min(shares):+.2%} to {max(shares):+.2%}"
        yield Line(f"of a step of the whole model, estimated from these layers: {part}")
    yield BLANK


def _print_measured_head(measured: Measurement) -> Document:
    subject = measured.subject
    traced = "sizes compiled in" if subject.static else f"traced with {subject.profile_tokens} rows"
    made_with = f"torch {measured.torch}" + (f", triton {measured.triton}" if measured.triton else "")
    yield Line(
        f"{measured.family}, {subject.dtype}, {traced}, called with {subject.tokens} of {subject.capacity}; "
        f"{measured.device}, {'run' if subject.runs else 'generated and called, not run'}, {made_with}"
    )
    if "payload_first" in measured.family:
        yield Line(_PAYLOAD_FIRST, "dim")
    yield from _print_doubt(measured)
    yield BLANK


def _print_doubt(measured: Measurement) -> Document:
    """Note where the torch and triton that generated the code were never checked together."""
    if (
        measured.triton
        and measured.subject.target in GPUS
        and (doubt := unchecked(measured.torch, measured.triton))
    ):
        yield Line(doubt, "yellow")


def _kernels(call: GraphCall) -> Document:
    numbers = [Column(width=width, right=True) for width in (12, 12, 7, 13, 7)]
    columns = [Column(width=5, right=True), Column(width=9), *numbers, Column()]
    yield table_line(columns, ["times", "kind", "points", "size", "rows", "bytes", "excess", "kernel"], "dim")
    for kernel, times in _counted(call.kernels):
        yield table_line(
            columns,
            [str(times), kernel.kind, *_figures(kernel), _short(kernel.kernel)],
            "red" if kernel.bytes > kernel.ideal_bytes else "",
        )
        for candidate in kernel.candidates:
            yield Line(
                f"       {candidate.config}: grid {'x'.join(map(str, candidate.grid))}, "
                f"{candidate.registers} registers, {candidate.spills} bytes spilled, "
                f"{candidate.shared} bytes shared",
                "dim",
            )


def _counted(kernels: Iterable[Kernel]) -> list[tuple[Kernel, int]]:
    """Count kernels that are equal to a reader, in the order of the first."""
    seen: dict[tuple[object, ...], list[Kernel]] = {}
    for kernel in kernels:
        seen.setdefault((kernel.kind, _short(kernel.kernel), *_figures(kernel), kernel.function), []).append(
            kernel
        )
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


def _differences(pairs: Sequence[Pair]) -> Document:
    """Print kernels that differ in size, equal pairs once; left and right as in the totals."""
    shown = [(_kernel_cells(left), _kernel_cells(right)) for left, right in pairs]
    differing = [(left, right) for left, right in shown if left[0] != right[0]]
    yield Line(f"{len(pairs) - len(differing)} kernels are equal, {len(differing)} differ")
    if not differing:
        return
    numbers = [Column(width=width, right=True) for width in (12, 12, 7, 7, 13, 13, 8)]
    columns = [Column(width=5, right=True), *numbers, Column()]
    yield table_line(columns, ["times", "points", "", "rows", "", "bytes", "", "ratio", "kernel"], "dim")
    for ((left, left_bytes, name), (right, right_bytes, other)), times in Counter(differing).items():
        figures = chain.from_iterable(zip(left, right, strict=True))
        ratio = _ratio(left_bytes, right_bytes) if left_bytes else ""
        yield table_line(columns, [str(times), *figures, ratio, name or other])
    yield BLANK


def _kernel_cells(kernel: Kernel | None) -> tuple[tuple[str, str, str], int, str]:
    """Return points, rows and bytes as shown, the bytes, and the name; empty where there is no kernel."""
    if kernel is None:
        return ("-", "-", "-"), 0, ""
    points, _, rows, moved, _ = _figures(kernel)
    return (points, rows, moved), kernel.bytes, _short(kernel.kernel)


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 2]}.."


def _ratio(left: int, right: int) -> str:
    return f"{left / right:.1f}x" if right else ""


def _print_seconds(measured: Sequence[Measurement]) -> Document:
    seconds = sum(measurement.seconds for measurement in measured)
    busy = sum(measurement.processor_seconds for measurement in measured)
    peak = max(measurement.peak_bytes for measurement in measured)
    yield Line(f"took {seconds:.1f} s ({busy:.1f} s of processor time), {peak / _GIB:.1f} GiB at most")


_GATHERS = (
    "the static count takes a gather for as many elements as its index expression has; "
    "which ones it reads is known only here"
)
_NOT_INTERPRETED = (
    "interpreted on the CPU: the source with one configuration, programs one after the other; races, PTX, "
    "layouts and CUDA graphs are not seen, matrix products and attention are torch's"
)


def show_executed(step: ExecutedStep) -> Document:
    """Print every launch, equal ones once with their number, and what touched a payload."""
    yield from _print_executed_head(step)
    numbers = [Column(width=width, right=True) for width in (7, 9, 13, 13, 7)]
    columns = [Column(width=5, right=True), *numbers, Column()]
    heads = ["times", "rows", "payload", "bytes", "static bytes", "ratio", "kernel"]
    yield table_line(columns, heads, "dim")
    for (cells, style), times in Counter(map(_cells, step.launches)).items():
        yield table_line(columns, [str(times), *cells], style)
    yield BLANK
    for launch in step.launches:
        for access in launch.accesses:
            if access.of_payload or access.outside:
                uses = (("read", access.read), ("wrote", access.written), ("OUTSIDE:", access.wild))
                does = [f"{verb} {rows_in_words(rows)}" for verb, rows in uses if rows]
                yield Line(
                    f"launch {access.launch}, {_short(access.kernel)}: {access.tensor} {access.shape} "
                    + "; ".join(does),
                    "red" if access.outside else "",
                )
    yield BLANK
    yield from _print_totals(step)


def show_executed_beside(steps: Sequence[ExecutedStep]) -> Document:
    """Print the launches of two revisions in order, rows and bytes of both."""
    yield from _print_executed_head(steps[0])
    first, second = steps
    numbers = [Column(width=width, right=True) for width in (7, 7, 9, 9, 13, 13)]
    columns = [Column(width=5, right=True), *numbers, Column()]
    names = f"{first.measured.subject.revision}, then {second.measured.subject.revision}"
    yield table_line(columns, ["times", "rows", "", "payload", "", "bytes", "", f"kernel ({names})"], "dim")
    pairs = zip_longest(first.launches, second.launches)
    lines: Counter[tuple[str, ...]] = Counter()
    for both in pairs:
        rows = ["-" if launch is None else f"{launch.rows:,}" for launch in both]
        payload = [f"{launch.payload_rows:,}" if launch and launch.payload_rows else "" for launch in both]
        moved = ["-" if launch is None else f"{launch.bytes:,}" for launch in both]
        name = next(_short(launch.kernel) for launch in both if launch)
        lines[*rows, *payload, *moved, name] += 1
    for cells, times in lines.items():
        yield table_line(columns, [str(times), *cells], "" if cells[0] == cells[1] else "red")
    yield BLANK
    for step in steps:
        yield from _print_totals(step)


def _print_executed_head(step: ExecutedStep) -> Document:
    measured, subject = step.measured, step.measured.subject
    yield Line(
        f"{measured.family}, {subject.dtype}, traced with {subject.profile_tokens} rows, called with "
        f"{subject.tokens} of {subject.capacity}; {measured.device}, torch {measured.torch}, "
        f"triton {measured.triton}"
    )
    yield Line(_NOT_INTERPRETED, "dim")
    yield from _print_doubt(measured)
    yield BLANK


def _cells(launch: ExecutedLaunch) -> tuple[tuple[str, ...], str]:
    counted = launch.counted.bytes
    ratio = f"{counted / launch.bytes:.2f}x" if launch.bytes else ""
    payload = f"{launch.payload_rows:,}" if launch.payload_rows else ""
    name = _short(launch.kernel)
    wild = any(access.outside for access in launch.accesses)
    return (
        f"{launch.rows:,}",
        payload,
        f"{launch.bytes:,}",
        f"{counted:,}",
        ratio,
        name,
    ), "red" if wild else ""


def _print_totals(step: ExecutedStep) -> Document:
    measured, facts, name = step.measured, step.accesses, step.measured.subject.revision
    rows = max((launch.rows for launch in step.launches), default=0)
    ratio = step.counted_bytes / step.bytes if step.bytes else 0.0
    yield Line(
        f"{name}: {len(step.launches)} launches of {facts.programs:,} programs, rows touched {rows}; "
        f"{step.bytes:,} bytes, counted statically {step.counted_bytes:,} ({ratio:.2f}x)"
    )
    if step.counted_bytes != step.bytes:
        yield Line(_GATHERS, "dim")
    yield Line(
        f"{name}: {facts.share:.0%} of the bytes of the step were measured, {len(facts.calls)} operations "
        f"were left to torch; the step took {measured.step_processor_seconds:.2f} s of processor time, "
        f"with its graph {measured.processor_seconds:.1f} s"
    )
