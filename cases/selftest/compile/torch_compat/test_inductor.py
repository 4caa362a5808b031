"""Inductor's scheduler and lowered graphs are read as `torch_compat.inductor` documents, on this torch."""

from contextlib import ExitStack, suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
import sympy
import torch
from torch import Tensor

from cases.selftest.compile.toys import HIDDEN, ROWS, TOKENS, Body, cut, inputs, opened, over_positions
from deepstack_harness.compile.compiled import CompiledSession
from deepstack_harness.compile.torch_compat import inductor
from deepstack_harness.compile.torch_compat.inductor import Lowered, NotRun, Watched, cold, watch
from deepstack_harness.compile.torch_compat.modes import without_storage


def lowered(body: Body) -> Lowered:
    (graph,) = watched(body, TOKENS).graphs
    assert graph is not None
    return graph


def watched(body: Body, *tokens: int) -> Watched:
    with ExitStack() as stack:
        stack.enter_context(cold(run=False))
        stack.enter_context(torch.no_grad())
        stack.enter_context(without_storage())
        session = opened(stack, body)
        seen = stack.enter_context(watch(["hidden", "positions"], run=False))
        for count in tokens:
            with suppress(NotRun):
                session.forward(inputs(count))
    return seen


def split(hidden: Tensor, positions: Tensor, payload: tuple[Tensor, ...], weight: Tensor) -> Tensor:
    """A call with two results, and a kernel after it."""
    values, indices = torch.topk(hidden, 2)
    return values * indices


def branched(hidden: Tensor, positions: Tensor, payload: tuple[Tensor, ...], weight: Tensor) -> Tensor:
    """A graph that calls others."""
    chosen: Tensor = torch.cond(payload[0].sum() > 0, torch.sin, torch.cos, (hidden,))
    return chosen


@pytest.mark.xdist_group("inductor")
def test_a_kernel_is_one_node_of_the_scheduler_with_outside_buffers_only() -> None:
    (kernel,) = lowered(cut).kernels
    assert kernel.kind == "generated"
    sizes = sorted(str(access.size) for access in kernel.accesses)
    assert len(kernel.accesses) == 4
    assert sum("8" in size for size in sizes) == 4
    assert {access.itemsize for access in kernel.accesses} == {4}


@pytest.mark.xdist_group("inductor")
def test_a_call_with_several_results_is_one_kernel_that_gives_all_of_them() -> None:
    call, kernel = lowered(split).kernels
    assert (call.kind, call.name) == ("extern", "aten.topk.default")
    assert [access.itemsize for access in call.accesses] == [4, 4, 8]
    assert kernel.kind == "generated"


@pytest.mark.xdist_group("inductor")
def test_a_graph_that_calls_others_is_not_read_and_still_compiles() -> None:
    seen = watched(branched, TOKENS)
    assert (seen.graphs, seen.calls) == ([None], [])
    assert len(seen.unread) == 1
    assert "calls another graph" in seen.unread[0]


@pytest.mark.xdist_group("inductor")
def test_symbols_are_bound_from_the_arguments_of_each_call() -> None:
    seen = watched(cut, ROWS - 1, TOKENS)
    (graph,) = seen.graphs
    assert graph is not None
    (token,) = graph.sizes_of["hidden"]
    assert [(number, symbols[token]) for number, symbols in seen.calls] == [(0, ROWS - 1), (0, TOKENS)]
    assert set(seen.calls[1][1].values()) == {TOKENS, ROWS}


@pytest.mark.xdist_group("inductor")
def test_a_symbol_that_is_an_argument_of_its_own_is_bound_before_sizes_are() -> None:
    graph = lowered(cut)
    (token,) = graph.sizes_of["hidden"]
    given = [
        ROWS if value == token else 0 for value in graph.inputs.values() if isinstance(value, sympy.Expr)
    ]
    assert ROWS in given
    tensors = [value for value in graph.inputs.values() if not isinstance(value, sympy.Expr)]
    shapes = [[TOKENS if extent == token else HIDDEN for extent in value.get_size()] for value in tensors]
    made = iter([torch.ones(shape) for shape in shapes])
    plain = iter(given)
    arguments = [next(plain if isinstance(value, sympy.Expr) else made) for value in graph.inputs.values()]
    assert graph.bind(arguments)[token] == ROWS


@pytest.mark.xdist_group("inductor")
def test_sizes_of_every_argument_named_are_token_counts() -> None:
    graph = lowered(over_positions)
    assert list(graph.sizes_of["hidden"]) == []
    assert graph.token_symbols == set(graph.sizes_of["positions"])
    assert graph.kernels[0].points.free_symbols == graph.token_symbols


@pytest.mark.xdist_group("inductor")
def test_weights_are_distinguished_from_what_changes_between_calls() -> None:
    graph = lowered(cut)
    tensors = {name: value for name, value in graph.inputs.items() if not isinstance(value, sympy.Expr)}
    assert [tensors[name].get_size() for name in graph.parameters] == [[ROWS, HIDDEN]]


@pytest.mark.xdist_group("inductor")
def test_nothing_is_patched_any_more_afterwards() -> None:
    from torch._inductor.codegen.triton import TritonScheduling  # noqa: TID251  # to see it as it was
    from torch._inductor.graph import GraphLowering  # noqa: TID251

    before = GraphLowering.compile_to_module, TritonScheduling.define_kernel
    watched(cut, TOKENS)
    assert (GraphLowering.compile_to_module, TritonScheduling.define_kernel) == before


@pytest.mark.xdist_group("inductor")
def test_a_constant_of_a_graph_has_its_own_size() -> None:
    dependency = SimpleNamespace(get_numel=lambda: sympy.Integer(5))
    graph = SimpleNamespace(
        constants={"c": torch.ones(3, 4)},
        get_dtype=lambda _: torch.float32,
        sizevars=SimpleNamespace(inv_precomputed_replacements={}),
    )
    found = inductor._access(graph, "c", [dependency])  # type: ignore[arg-type, list-item]
    assert (found.size, found.elements, found.itemsize) == ((3, 4), 5, 4)


GENERATED = """
cpp_fused_add_0 = async_compile.cpp_pybinding(['float*'], 'x')
triton_poi_fused_mul_1 = async_compile.triton('triton_', 'x')

class Runner:
    def call(self, args):
        arg0_1, = args
        assert_size_stride(arg0_1, (4, ), (1, ))
        buf0 = empty_strided_cpu((4, ), (1, ), torch.float32)
        extern_kernels.addmm(arg0_1, reinterpret_tensor(arg0_1, (2, 2), (2, 1), 0), out=buf0)
        cpp_fused_add_0(arg0_1, buf0)
        with torch.cuda._DeviceGuard(0):
            triton_poi_fused_mul_1.run(buf0, 4, stream=0)
        cpp_fused_add_0(buf0, buf0)
        buf1 = torch.ops.aten.cumsum.default(buf0)
        return (buf1, )

def benchmark():
    cpp_fused_add_0(None, None)
"""


def test_kernels_are_those_that_the_generated_code_calls_in_its_order() -> None:
    assert list(inductor.kernels_in(GENERATED)) == [
        "extern_kernels.addmm", "cpp_fused_add", "triton_poi_fused_mul", "cpp_fused_add",
        "torch.ops.aten.cumsum.default",
    ]  # fmt: skip


@pytest.mark.slow  # the C++ compiler takes 15 s
@pytest.mark.xdist_group("inductor")
def test_code_that_comes_out_of_the_cache_counts_like_new_code(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    made = []
    for _ in range(2):
        with ExitStack() as stack:
            stack.enter_context(torch.no_grad())
            session = opened(stack, cut)
            session.forward(inputs(TOKENS))
            assert isinstance(session, CompiledSession)
            made.append(session.code)
    new, cached = made
    assert new.kernels
    assert new.code_bytes
    assert (new.kernels, new.code_bytes, new.dropped) == (cached.kernels, cached.code_bytes, cached.dropped)
    assert new.seconds is not None
    assert cached.seconds is None
