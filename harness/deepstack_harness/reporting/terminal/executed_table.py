"""The tables of `kernels --execute`: launches with what they touched, of one revision or of two."""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import zip_longest

from deepstack_harness.contract.facts.accesses import KernelAccess, rows_in_words
from deepstack_harness.kernels.executed import ExecutedLaunch, ExecutedStep
from deepstack_harness.reporting.terminal.output import Column, Output

_NAME = 60
_GATHERS = (
    "the static count takes a gather for as many elements as its index expression has; "
    "which ones it reads is known only here"
)
_NOT_SEEN = (
    "interpreted on the CPU: the source with one configuration, programs one after the other; races, PTX, "
    "layouts and CUDA graphs are not seen, matrix products and attention are torch's"
)


def show_executed(output: Output, step: ExecutedStep) -> None:
    """Print every launch, equal ones once with their number, and what touched a payload."""
    _head(output, step)
    right = [Column(width, right=True) for width in (7, 9, 13, 13, 7)]
    columns = [Column(5, right=True), *right, Column(0)]
    heads = ["times", "rows", "payload", "bytes", "static bytes", "ratio", "kernel"]
    output.row(columns, heads, "dim")
    for (cells, style), times in Counter(map(_cells, step.launches)).items():
        output.row(columns, [str(times), *cells], style)
    output.line()
    for launch in step.launches:
        for access in launch.accesses:
            if access.tensor.startswith("payload[") or access.outside:
                output.line(_told(access), "red" if access.outside else "")
    output.line()
    _totals(output, step)


def show_executed_beside(output: Output, steps: Sequence[ExecutedStep]) -> None:
    """Print the launches of two revisions in order, rows and bytes of both."""
    _head(output, steps[0])
    one, other = steps
    right = [Column(width, right=True) for width in (7, 7, 9, 9, 13, 13)]
    columns = [Column(5, right=True), *right, Column(0)]
    names = f"{one.subject.revision}, then {other.subject.revision}"
    output.row(columns, ["times", "rows", "", "payload", "", "bytes", "", f"kernel ({names})"], "dim")
    pairs = zip_longest(one.launches, other.launches)
    for cells, times in Counter(_beside(left, right_one) for left, right_one in pairs).items():
        output.row(columns, [str(times), *cells], "" if cells[0] == cells[1] else "red")
    output.line()
    for step in steps:
        _totals(output, step)


def _head(output: Output, step: ExecutedStep) -> None:
    subject, measured = step.subject, step.measured
    output.line(
        f"{measured.family}, {subject.dtype}, traced with {subject.profile_tokens} rows, called with "
        f"{subject.tokens} of {subject.capacity}; {measured.device}, torch {measured.torch}, "
        f"triton {measured.triton}"
    )
    output.line(_NOT_SEEN, "dim")
    output.line()


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


def _beside(one: ExecutedLaunch | None, other: ExecutedLaunch | None) -> tuple[str, ...]:
    both = (one, other)
    rows = ["-" if launch is None else f"{launch.rows:,}" for launch in both]
    payload = [
        "" if launch is None or not launch.payload_rows else f"{launch.payload_rows:,}" for launch in both
    ]
    moved = ["-" if launch is None else f"{launch.bytes:,}" for launch in both]
    named = one or other
    return (*rows, *payload, *moved, _short(named.kernel) if named else "")


def _told(access: KernelAccess) -> str:
    does = [f"{verb} {rows_in_words(rows)}" for verb, rows in _uses(access) if rows]
    return f"launch {access.launch}, {_short(access.kernel)}: {access.tensor} {access.shape} " + "; ".join(
        does
    )


def _uses(access: KernelAccess) -> Iterable[tuple[str, tuple[tuple[int, int], ...]]]:
    return (("read", access.read), ("wrote", access.written), ("OUTSIDE:", access.wild))


def _totals(output: Output, step: ExecutedStep) -> None:
    facts, name = step.accesses, step.subject.revision
    rows = max((launch.rows for launch in step.launches), default=0)
    ratio = step.counted_bytes / step.bytes if step.bytes else 0.0
    output.line(
        f"{name}: {len(step.launches)} launches of {facts.programs:,} programs, rows touched {rows}; "
        f"{step.bytes:,} bytes, counted statically {step.counted_bytes:,} ({ratio:.2f}x)"
    )
    if step.counted_bytes != step.bytes:
        output.line(_GATHERS, "dim")
    output.line(
        f"{name}: {facts.share:.0%} of the bytes of the step were measured, {len(facts.calls)} operations "
        f"were left to torch; the step took {step.measured.step_seconds:.2f} s of processor time, with its "
        f"graph {step.measured.cost.processor_seconds:.1f} s"
    )


def _short(name: str) -> str:
    return name if len(name) <= _NAME else f"{name[: _NAME - 2]}.."
