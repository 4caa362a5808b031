"""Inductor's private parts do what `deepstack_harness.torch_compat` says of them, on this torch."""

from contextlib import ExitStack, suppress
from types import SimpleNamespace
from typing import Any

import pytest
import sympy
import torch
from torch import Tensor

from cases.selftest.kernels.toys import HIDDEN, ROWS, TOKENS, Body, cut, inputs, opened, over_positions
from deepstack_harness.errors import MachineError
from deepstack_harness.torch_compat import scheduler
from deepstack_harness.torch_compat.fake_tensors import without_storage
from deepstack_harness.torch_compat.lowering import Lowered, NotRun, Watched, cold, watch
from deepstack_harness.torch_compat.target_support import why_not
from deepstack_harness.workers.outcomes import Answered
from deepstack_harness.workers.worker import call_once

pytestmark = pytest.mark.xdist_group("inductor")

NEEDS_TRITON = pytest.mark.skipif(bool(why_not()), reason=why_not())


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
    """A call with two results, and a kernel behind it."""
    values, indices = torch.topk(hidden, 2)
    return values * indices


def branched(hidden: Tensor, positions: Tensor, payload: tuple[Tensor, ...], weight: Tensor) -> Tensor:
    """A graph that calls others."""
    chosen: Tensor = torch.cond(payload[0].sum() > 0, torch.sin, torch.cos, (hidden,))
    return chosen


def test_a_kernel_is_one_node_of_the_scheduler_with_outside_buffers_only() -> None:
    (kernel,) = lowered(cut).kernels
    assert kernel.kind == "generated"
    sizes = sorted(str(access.size) for access in kernel.accesses)
    assert len(kernel.accesses) == 4
    assert sum("8" in size for size in sizes) == 4
    assert {access.itemsize for access in kernel.accesses} == {4}


def test_a_call_with_several_results_is_one_kernel_that_gives_all_of_them() -> None:
    call, kernel = lowered(split).kernels
    assert (call.kind, call.name) == ("extern", "aten.topk.default")
    assert [access.itemsize for access in call.accesses] == [4, 4, 8]
    assert kernel.kind == "generated"


def test_a_graph_that_calls_others_is_not_read_and_still_compiles() -> None:
    seen = watched(branched, TOKENS)
    assert (seen.graphs, seen.calls) == ([None], [])
    assert len(seen.unread) == 1
    assert "calls another graph" in seen.unread[0]


def test_symbols_are_bound_from_the_arguments_of_each_call() -> None:
    seen = watched(cut, ROWS - 1, TOKENS)
    (graph,) = seen.graphs
    assert graph is not None
    (token,) = graph.sizes_of["hidden"]
    assert [(number, symbols[token]) for number, symbols in seen.calls] == [(0, ROWS - 1), (0, TOKENS)]
    assert set(seen.calls[1][1].values()) == {TOKENS, ROWS}


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


def test_sizes_of_every_argument_named_are_token_counts() -> None:
    graph = lowered(over_positions)
    assert list(graph.sizes_of["hidden"]) == []
    assert graph.token_symbols == set(graph.sizes_of["positions"])
    assert graph.kernels[0].points.free_symbols == graph.token_symbols


def test_weights_are_told_from_what_changes_between_calls() -> None:
    graph = lowered(cut)
    tensors = {name: value for name, value in graph.inputs.items() if not isinstance(value, sympy.Expr)}
    assert [tensors[name].get_size() for name in graph.parameters] == [[ROWS, HIDDEN]]


def test_nothing_is_patched_any_more_afterwards() -> None:
    from torch._inductor.codegen.triton import TritonScheduling  # noqa: TID251  # to see it as it was
    from torch._inductor.graph import GraphLowering  # noqa: TID251

    before = GraphLowering.compile_to_module, TritonScheduling.define_kernel
    watched(cut, TOKENS)
    assert (GraphLowering.compile_to_module, TritonScheduling.define_kernel) == before


def test_what_has_no_storage_may_be_of_any_size() -> None:
    with without_storage():
        assert (torch.ones(2**40) + 1).shape == (2**40,)


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    result = call_once("cases.selftest.torch_compat.fake_gpu_child:find")
    assert isinstance(result, Answered), result
    value: dict[str, Any] = result.value
    return value


@NEEDS_TRITON
def test_tensors_lie_on_the_gpu_that_is_pretended(found: dict[str, Any]) -> None:
    assert (found["device"], found["capability"]) == ("cuda:0", [9, 0])
    assert found["target"] == ["90"]


@NEEDS_TRITON
def test_every_generated_kernel_is_a_triton_function(found: dict[str, Any]) -> None:
    assert found["kinds"] == ["generated", "generated"]
    assert [sorted(operations) for operations in found["kernels"]] == found["functions"]


@NEEDS_TRITON
def test_registers_and_shared_memory_are_those_of_the_cubin(found: dict[str, Any]) -> None:
    assert len(found["candidates"]) >= 1
    assert [[registers, shared] for registers, _, shared, *_ in found["candidates"]] == found["dumped"]
    assert all(x >= 1 and (y, z) == (1, 1) for *_, x, y, z in found["candidates"])


@NEEDS_TRITON
def test_loading_a_kernel_is_refused(found: dict[str, Any]) -> None:
    assert "there is no NVIDIA H200" in found["launch"]


@NEEDS_TRITON
def test_a_second_pretence_is_refused(found: dict[str, Any]) -> None:
    assert "there is a real GPU here" in found["again"]


@NEEDS_TRITON
def test_spilled_registers_are_counted() -> None:
    from deepstack_harness.torch_compat.fake_gpu_cubin import _asked_of_ptxas

    held = range(64)
    ptx = "\n".join(
        [
            ".version 8.0",
            ".target sm_90",
            ".address_size 64",
            ".visible .entry busy(.param .u64 p) .maxnreg 16 {",
        ]
        + [".reg .u64 %rd<2>;", ".reg .b32 %r<64>;", "ld.param.u64 %rd1, [p];"]
        + [f"ld.volatile.global.u32 %r{index}, [%rd1+{4 * index}];" for index in held]
        + [f"st.volatile.global.u32 [%rd1+{4 * index}], %r{index};" for index in reversed(held)]
        + ["ret;", "}"]
    )
    registers, spills = _asked_of_ptxas(SimpleNamespace(asm={"ptx": ptx}))
    assert registers <= 24
    assert spills > 4 * 32


@NEEDS_TRITON
def test_a_kernel_that_ptxas_refuses_is_told_with_its_words() -> None:
    from deepstack_harness.torch_compat.fake_gpu_cubin import _asked_of_ptxas

    ptx = ".version 8.0\n.target sm_90\n.address_size 64\nnonsense"
    with pytest.raises(MachineError, match=r"ptxas did not say what a kernel uses: .*nonsense"):
        _asked_of_ptxas(SimpleNamespace(asm={"ptx": ptx}))


@NEEDS_TRITON
def test_constants_of_a_fake_gpu_are_folded_on_the_cpu() -> None:
    from deepstack_harness.torch_compat.fake_gpu import _on_cpu, _replace

    def fold(count: int, *, device: torch.device) -> Tensor:
        return torch.ops.aten.full([count], 3.0, device=device)  # type: ignore[no-any-return]

    folded = _on_cpu(fold)(2, device=torch.device("cuda"))
    assert (folded.device.type, folded.tolist()) == ("cpu", [3.0, 3.0])
    owner = SimpleNamespace(there=1)
    _replace(owner, "there", 2)
    assert owner.there == 2
    with pytest.raises(MachineError, match=r"has no gone, which simulating a GPU needs"):
        _replace(owner, "gone", 2)


def test_a_constant_of_a_graph_has_its_own_size() -> None:
    dependency = SimpleNamespace(get_numel=lambda: sympy.Integer(5))
    graph = SimpleNamespace(
        constants={"c": torch.ones(3, 4)},
        get_dtype=lambda _: torch.float32,
        sizevars=SimpleNamespace(inv_precomputed_replacements={}),
    )
    found = scheduler._access(graph, "c", [dependency])  # type: ignore[arg-type, list-item]
    assert (found.size, found.elements, found.itemsize) == ((3, 4), 5, 4)
