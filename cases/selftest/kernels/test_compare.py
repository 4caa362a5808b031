"""Kernels of two calls are laid side by side; predictions are held against what a GPU did."""

import json
from dataclasses import replace

import pytest

from deepstack_harness.contract.facts.kernels import Candidate, GraphCall, Kernel
from deepstack_harness.errors import NotMeasured
from deepstack_harness.kernels.compare import Pair, agreement, paired
from deepstack_harness.probes.launches import KernelLaunch, read_launches, with_grids

NORM = Kernel(
    graph=0, kernel="fused_mean", kind="generated", points=9856, symbolic_points="128*n", reduction=128,
    symbolic_reduction="128", rows=77, symbolic_rows="n", bytes=39680, ideal_bytes=39680, carries_tokens=True,
    function="triton_per_fused_mean_0",
)  # fmt: skip
SILU = replace(
    NORM, kernel="fused_silu", points=19712, symbolic_points="256*n", function="triton_poi_fused_silu_1"
)
MATMUL = replace(
    NORM, kernel="aten.mm.out", kind="extern", points=None, symbolic_points=None, reduction=None,
    symbolic_reduction=None, function=None,
)  # fmt: skip
ROWS = replace(NORM, kernel="fused_clamp", points=1048576, symbolic_points="128*s3", rows=8192)


def call(*kernels: Kernel) -> GraphCall:
    return GraphCall(0, symbolic=True, symbols={"n": 77}, kernels=kernels)


def test_a_kernel_too_many_stands_alone() -> None:
    pairs = paired(call(NORM, MATMUL, ROWS, SILU), call(NORM, MATMUL, SILU))
    assert pairs == [Pair(NORM, NORM), Pair(MATMUL, MATMUL), Pair(ROWS, None), Pair(SILU, SILU)]


def test_generated_names_may_differ_and_libraries_may_not() -> None:
    renamed, other = replace(NORM, kernel="fused_mean_slice"), replace(MATMUL, kernel="aten.bmm.out")
    assert paired(call(NORM, MATMUL), call(renamed, other)) == [
        Pair(NORM, renamed), Pair(MATMUL, None), Pair(None, other),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("real", "share"),
    [
        (call(NORM, SILU), 1.0),
        (call(NORM, replace(SILU, bytes=1)), 0.5),
        (call(NORM, replace(SILU, rows=8192)), 0.5),
        (call(NORM), 0.5),
        (call(NORM, SILU, ROWS), 2 / 3),
    ],
)
def test_agreement_is_the_share_of_kernels_that_are_the_same(real: GraphCall, share: float) -> None:
    found = agreement(call(NORM, SILU), real)
    assert found.share == pytest.approx(share)
    assert len(found.differing) == found.kernels - found.agreeing


@pytest.mark.parametrize(("grid", "agree"), [((77, 1, 1), 1), ((10, 1, 1), 1), ((11, 1, 1), 0), (None, 1)])
def test_a_launched_grid_must_be_one_of_the_candidates(grid: tuple[int, int, int] | None, agree: int) -> None:
    candidates = tuple(Candidate("", (x, 1, 1), 16, 0, 0) for x in (77, 10))
    found = agreement(call(replace(NORM, candidates=candidates)), call(replace(NORM, grid=grid)))
    assert found.agreeing == agree


def trace(*events: tuple[str, float]) -> bytes:
    """A profiler's trace: kernels with their starting times, and something that is no kernel."""
    kernels = [{"cat": "kernel", "name": name, "ts": at, "args": {"grid": [77, 1, 1]}} for name, at in events]
    return json.dumps({"traceEvents": [{"cat": "cpu_op", "name": "aten::mm", "ts": 0}, *kernels]}).encode()


def test_launches_are_read_in_the_order_they_started() -> None:
    found = read_launches(trace(("second", 2.0), ("first", 1.0)))
    assert found == [KernelLaunch("first", (77, 1, 1)), KernelLaunch("second", (77, 1, 1))]


def test_launches_of_libraries_lie_between() -> None:
    launches = [
        KernelLaunch(NORM.function or "", (77, 1, 1)),
        KernelLaunch("nvjet", (1, 1, 1)),
        KernelLaunch(SILU.function or "", (20, 1, 1)),
    ]
    (found,) = with_grids([call(NORM, MATMUL, SILU)], launches)
    assert [kernel.grid for kernel in found.kernels] == [(77, 1, 1), None, (20, 1, 1)]


def test_a_kernel_that_was_not_launched_is_not_measured() -> None:
    with pytest.raises(NotMeasured, match="triton_poi_fused_silu_1 was generated and not launched"):
        with_grids([call(NORM, SILU)], [KernelLaunch(NORM.function or "", (77, 1, 1))])
