"""Rows that `kernels --json` writes: one for each kernel, and one for each graph.  No torch."""

from collections.abc import Iterator
from dataclasses import dataclass

from deepstack_harness.contract.facts.kernels import Candidate, GraphCall, Kernel
from deepstack_harness.kernels.measurement import Measurement
from deepstack_harness.kernels.subject import Subject

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class KernelRow:
    """One kernel; or a whole graph, where `kernel` is None and `kind` is `graph`.

    Of a graph, `points` and bytes are sums over generated kernels, `symbolic_points`
    is that of the largest, `rows` the most of any kernel, and `kernels`, `largest`
    and `extern_bytes` are not None.  Bytes and rows are as in `deepstack_harness.contract.facts.kernels`.
    """

    system: str
    family: str
    revision: str
    arm: str
    target: str
    device: str
    dtype: str
    tokens: int
    capacity: int
    profile_tokens: int
    layers: int | None
    hidden: int | None
    graph: int
    kernel: str | None
    kind: str
    points: int | None
    symbolic_points: str | None
    reduction: int | None
    rows: int | None
    symbolic_rows: str | None
    bytes: int
    ideal_bytes: int
    carries_tokens: bool | None
    function: str | None
    grid: tuple[int, int, int] | None
    candidates: tuple[Candidate, ...]
    kernels: int | None
    largest: int | None
    extern_bytes: int | None
    seconds: float
    processor_seconds: float
    peak_bytes: int
    torch: str
    triton: str | None
    schema_version: int = SCHEMA_VERSION


def rows_of(subject: Subject, measured: Measurement) -> Iterator[KernelRow]:
    """Yield the kernels in the order they run, each graph's own row behind them."""
    for call in measured.calls:
        for kernel in call.kernels:
            yield _row(subject, measured, call, kernel)
        yield _row(subject, measured, call, None)


def _row(subject: Subject, measured: Measurement, call: GraphCall, kernel: Kernel | None) -> KernelRow:
    whole = kernel is None
    return KernelRow(
        system="deepstack", family=measured.family, revision=subject.revision, arm=subject.arm,
        target=subject.target, device=measured.device, dtype=subject.dtype, tokens=subject.tokens,
        capacity=subject.capacity, profile_tokens=subject.profile_tokens, layers=subject.layers,
        hidden=subject.hidden, graph=call.graph,
        kernel=kernel.kernel if kernel else None,
        kind=kernel.kind if kernel else "graph",
        points=kernel.points if kernel else call.points,
        symbolic_points=(kernel or call.largest).symbolic_points,
        reduction=kernel.reduction if kernel else None,
        rows=kernel.rows if kernel else call.rows,
        symbolic_rows=kernel.symbolic_rows if kernel else None,
        bytes=(kernel or call).bytes,
        ideal_bytes=(kernel or call).ideal_bytes,
        carries_tokens=kernel.carries_tokens if kernel and call.symbolic else None,
        function=kernel.function if kernel else None,
        grid=kernel.grid if kernel else None,
        candidates=kernel.candidates if kernel else (),
        kernels=len(call.generated) if whole else None,
        largest=call.largest.points if whole else None,
        extern_bytes=call.extern_bytes if whole else None,
        seconds=measured.cost.seconds, processor_seconds=measured.cost.processor_seconds,
        peak_bytes=measured.cost.peak_bytes, torch=measured.torch, triton=measured.triton,
    )  # fmt: skip
