"""Kernels are counted at the sizes of each call, laid side by side, and held against what a GPU launched."""

import json
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest
import sympy
import torch

from cases.baselines import agreement
from cases.selftest.compile.toys import (
    DYNAMIC,
    HIDDEN,
    ROWS,
    STATIC,
    TOKENS,
    Body,
    cut,
    facts,
    gathered,
    hidden_first,
    inputs,
    last,
    multiplied,
    normed,
    over_positions,
    payload_first,
    summed,
    weight_summed,
    written_back,
)
from deepstack_harness.compile.kernel_probe import KernelProbe, _Call, read_launches, with_grids
from deepstack_harness.compile.kernel_steps import Decode, _run
from deepstack_harness.compile.kernels import paired
from deepstack_harness.compile.torch_compat.inductor import NotRun, cold
from deepstack_harness.contract.arm import ArmSpec
from deepstack_harness.contract.facts import Candidate, GraphCall, Kernel, KernelFacts
from deepstack_harness.errors import NotMeasured
from deepstack_harness.models.layers import attended_rows

ROW = HIDDEN * 4


"""Bytes of one row in fp32."""


CALLS = (ROWS, TOKENS)


@pytest.fixture(scope="module")
def generated() -> KernelFacts:
    return facts(payload_first, CALLS)


@pytest.fixture(scope="module")
def first_run() -> tuple[KernelFacts, list[int]]:
    """Compiled and run, torch's caches on and cold; and the rows that attention was really given."""
    with attended_rows() as attended:
        seen = facts(payload_first, CALLS, run=True, caches=nullcontext())
    return seen, attended


@pytest.mark.xdist_group("inductor")
def test_a_slice_is_charged_as_a_slice() -> None:
    call = last(cut)
    (kernel,) = call.generated
    assert (kernel.points, kernel.symbolic_points, kernel.reduction) == (TOKENS * HIDDEN, f"{HIDDEN}*n", 1)
    assert (kernel.rows, kernel.symbolic_rows) == (TOKENS, "n")
    assert kernel.bytes == kernel.ideal_bytes == 3 * TOKENS * ROW + ROW
    assert kernel.carries_tokens
    assert call.symbols["n"] == TOKENS


@pytest.mark.xdist_group("inductor")
@pytest.mark.parametrize(("arm", "size"), [(DYNAMIC, None), (STATIC, str(ROWS * HIDDEN))])
def test_rows_that_must_exist_are_all_counted(arm: ArmSpec, size: str | None) -> None:
    call = last(written_back, arm=arm)
    kernel = call.largest
    assert len(call.generated) == 2
    assert (kernel.points, kernel.rows) == (ROWS * HIDDEN, ROWS)
    assert (kernel.bytes, kernel.ideal_bytes) == (2 * ROWS * ROW, 2 * TOKENS * ROW)
    assert not kernel.carries_tokens
    assert size in {None, kernel.symbolic_points}
    assert call.symbolic is (size is None)
    assert (call.rows, call.bytes) == (ROWS, 2 * ROWS * ROW + 3 * TOKENS * ROW + ROW)


@pytest.mark.xdist_group("inductor")
def test_rows_that_are_summed_away_are_counted() -> None:
    kernel = last(summed).largest
    assert (kernel.points, kernel.reduction, kernel.rows) == (ROWS * HIDDEN, ROWS, ROWS)
    assert kernel.bytes == ROWS * ROW + ROW


@pytest.mark.xdist_group("inductor")
def test_a_gather_is_not_charged_the_whole_table() -> None:
    (kernel,) = last(gathered).generated
    assert (kernel.rows, kernel.symbolic_rows) == (TOKENS, "n")
    assert kernel.bytes == 3 * TOKENS * ROW + TOKENS * 8 + ROW


@pytest.mark.xdist_group("inductor")
@pytest.mark.parametrize(("body", "bound"), [(payload_first, ROWS), (hidden_first, TOKENS)])
def test_symbols_are_bound_as_called_whatever_they_were_traced_with(body: Body, bound: int) -> None:
    seen = facts(body, CALLS)
    traced, called = seen.calls
    assert seen.graphs == 1
    assert [call.symbols["n"] for call in seen.calls] == [ROWS, bound]
    assert [kernel.symbolic_points for kernel in called.kernels] == [
        kernel.symbolic_points for kernel in traced.kernels
    ]
    assert called.largest.symbolic_points == f"{HIDDEN}*n"
    assert {kernel.rows for kernel in called.kernels} == {bound}
    assert called.bytes * ROWS == pytest.approx(traced.bytes * bound, rel=0.1)


@pytest.mark.xdist_group("inductor")
@pytest.mark.slow  # 7 s; the daily baseline of an H200 has generated kernels too
def test_what_was_generated_is_what_runs(
    generated: KernelFacts, first_run: tuple[KernelFacts, list[int]]
) -> None:
    assert first_run[0] == generated


@pytest.mark.slow  # 10 s; by day cases/test_granite.py counts them
@pytest.mark.xdist_group("inductor")
def test_rows_of_an_opaque_op_are_those_it_was_given(first_run: tuple[KernelFacts, list[int]]) -> None:
    seen, attended = first_run
    assert attended == [kernel.rows for call in seen.calls for kernel in call.extern] == [ROWS, ROWS]


@pytest.mark.slow  # by day the baseline of an H200
@pytest.mark.xdist_group("inductor")
def test_facts_are_equal_over_two_cold_runs_and_two_compile_threads(
    first_run: tuple[KernelFacts, list[int]],
) -> None:
    assert facts(payload_first, CALLS, run=True, caches=cold(compile_threads=2)) == first_run[0]


@pytest.mark.xdist_group("inductor")
def test_a_warm_cache_is_noticed(first_run: tuple[KernelFacts, list[int]]) -> None:
    with pytest.raises(NotMeasured, match="1 graphs came out of a warm compile cache"):
        facts(payload_first, CALLS, run=True, caches=nullcontext())


@pytest.mark.xdist_group("inductor")
def test_nothing_compiled_is_not_measured() -> None:
    with KernelProbe(TOKENS, ROWS) as probe:
        pass
    with pytest.raises(NotMeasured, match="0 graphs were compiled and none called"):
        probe.facts()


@pytest.mark.xdist_group("inductor")
def test_a_graph_that_was_compiled_before_is_not_measured() -> None:
    @torch.compile(backend="inductor", dynamic=False)
    def doubled(hidden: torch.Tensor) -> torch.Tensor:
        return hidden * 2

    hidden = inputs(TOKENS).hidden
    doubled(hidden)
    with KernelProbe(TOKENS, ROWS) as probe:
        doubled(hidden)
    with pytest.raises(NotMeasured, match="0 graphs were compiled and none called"):
        probe.facts()


@pytest.mark.xdist_group("inductor")
def test_a_graph_without_generated_kernels_is_not_measured() -> None:
    with pytest.raises(NotMeasured, match="0 generated kernels and 0 bytes"):
        last(multiplied)


@pytest.mark.xdist_group("inductor")
def test_what_a_kernel_writes_and_reads_again_is_charged_once() -> None:
    call = last(normed)
    (kernel,) = call.generated
    # Reads hidden, the slice and a row of the weight; writes the sum and the norm. One mean for
    # each row may go through memory.
    assert 0 <= kernel.bytes - (4 * TOKENS * ROW + ROW) <= TOKENS * 4


@pytest.mark.xdist_group("inductor")
def test_a_kernel_over_only_positions_carries_the_token_symbol() -> None:
    (kernel,) = last(over_positions).generated
    assert (kernel.rows, kernel.carries_tokens) == (TOKENS, True)


@pytest.mark.xdist_group("inductor")
@pytest.mark.parametrize("arm", [DYNAMIC, STATIC])
def test_a_parameter_has_no_token_rows_whatever_its_size(arm: ArmSpec) -> None:
    over_weight, over_step = last(weight_summed, arm=arm).generated
    assert (over_weight.points, over_weight.rows, over_step.rows) == (ROWS * HIDDEN, None, TOKENS)
    assert over_weight.bytes == over_weight.ideal_bytes == ROWS * ROW + ROW


@pytest.mark.xdist_group("inductor")
def test_a_graph_that_cannot_be_read_is_not_measured() -> None:
    def branched(
        hidden: torch.Tensor, positions: torch.Tensor, payload: tuple[torch.Tensor, ...], weight: torch.Tensor
    ) -> torch.Tensor:
        chosen: torch.Tensor = torch.cond(payload[0].sum() > 0, torch.sin, torch.cos, (hidden,))
        return chosen

    with pytest.raises(NotMeasured, match="kernels could not be read: graph 0: .* calls another graph"):
        last(branched)


@pytest.mark.xdist_group("inductor")
def test_a_size_with_a_symbol_of_no_input_is_not_measured() -> None:
    call = _Call.__new__(_Call)
    bound, free = sympy.symbols("s0 s1")
    call._symbols, call._number = {bound: sympy.Integer(7)}, 3
    assert call._value(bound * 2) == 14
    with pytest.raises(NotMeasured, match=r"2\*s1 of graph 3 has symbols that no input binds"):
        call._value(free * 2)


@pytest.mark.xdist_group("inductor")
def test_the_calls_of_the_profile_run_are_before_those_of_the_step() -> None:
    """A subject with fixed sizes has no profile run; where no code is generated to run, both stop early."""
    played: list[str] = []

    def run(name: str) -> None:
        played.append(name)
        raise NotRun

    watched = SimpleNamespace(calls=played)
    for static, before in ((False, 1), (True, 0)):
        played.clear()
        decode = SimpleNamespace(
            subject=SimpleNamespace(static=static), profile_run=lambda: run("run"), step=lambda: run("step")
        )
        assert _run(cast(Decode, decode), cast(KernelProbe, SimpleNamespace(watched=watched))) == before
        assert played == ["run", "step"][1 - before :]


@pytest.mark.xdist_group("inductor")
def test_a_profile_run_has_the_requested_tokens() -> None:
    session = SimpleNamespace(forward=lambda inputs: inputs)
    decode = SimpleNamespace(subject=SimpleNamespace(profile_tokens=7), session=session, inputs=lambda n: n)
    assert Decode.profile_run(cast(Decode, decode)) == 7


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


WHOLE_BUFFER = replace(NORM, kernel="fused_clamp", points=1048576, symbolic_points="128*s3", rows=8192)


def call(*kernels: Kernel) -> GraphCall:
    return GraphCall(0, symbolic=True, symbols={"n": 77}, kernels=kernels)


def test_a_kernel_too_many_has_no_partner() -> None:
    pairs = paired(call(NORM, MATMUL, WHOLE_BUFFER, SILU), call(NORM, MATMUL, SILU))
    assert pairs == [(NORM, NORM), (MATMUL, MATMUL), (WHOLE_BUFFER, None), (SILU, SILU)]


def test_generated_names_may_differ_and_libraries_may_not() -> None:
    renamed, other = replace(NORM, kernel="fused_mean_slice"), replace(MATMUL, kernel="aten.bmm.out")
    assert paired(call(NORM, MATMUL), call(renamed, other)) == [
        (NORM, renamed), (MATMUL, None), (None, other),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("real", "share"),
    [
        (call(NORM, SILU), 1.0),
        (call(NORM, replace(SILU, bytes=1)), 0.5),
        (call(NORM, replace(SILU, rows=8192)), 0.5),
        (call(NORM), 0.5),
        (call(NORM, SILU, WHOLE_BUFFER), 2 / 3),
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
    assert found == [("first", (77, 1, 1)), ("second", (77, 1, 1))]


def test_launches_of_libraries_lie_between() -> None:
    launches = [
        (NORM.function or "", (77, 1, 1)),
        ("nvjet", (1, 1, 1)),
        (SILU.function or "", (20, 1, 1)),
    ]
    (found,) = with_grids([call(NORM, MATMUL, SILU)], launches)
    assert [kernel.grid for kernel in found.kernels] == [(77, 1, 1), None, (20, 1, 1)]


def test_a_kernel_that_was_not_launched_is_not_measured() -> None:
    with pytest.raises(NotMeasured, match="triton_poi_fused_silu_1 was generated and not launched"):
        with_grids([call(NORM, SILU)], [(NORM.function or "", (77, 1, 1))])
