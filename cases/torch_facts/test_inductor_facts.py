"""Facts of Inductor and Triton that the harness rests on: sizes, kernels and caches."""

import importlib.util
import subprocess
import sys
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from cases.torch_facts.facts import Since, fact

pytestmark = pytest.mark.xdist_group("inductor")

needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="triton is not installed: extra `kernels`"
)


def add_and_scale(x: Tensor, payload: Tensor) -> Tensor:
    return (x + payload) * 2


@pytest.fixture(scope="module")
def lowered() -> Any:
    """Compile a function with one symbolic size once; return the graphs that reached code generation."""
    from torch._dynamo import mark_dynamic
    from torch._inductor import metrics
    from torch._inductor.graph import GraphLowering
    from torch._inductor.utils import fresh_cache

    torch.compiler.reset()
    metrics.reset()
    seen: list[Any] = []
    generate = GraphLowering.compile_to_module

    def keep(graph: Any) -> Any:
        module = generate(graph)
        seen.append(graph)
        return module

    with fresh_cache(), patch.object(GraphLowering, "compile_to_module", keep):
        run = torch.compile(add_and_scale, backend="inductor", fullgraph=True, dynamic=False)
        for tokens in (6, 7):
            x = torch.ones(tokens, 8)
            mark_dynamic(x, 0)
            run(x, x)
        counted = metrics.generated_kernel_count + metrics.generated_cpp_vec_kernel_count
    return {"graphs": seen, "kernels": counted, "bytes": metrics.num_bytes_accessed}


@fact("GraphLowering.compile_to_module", "torch_compat/inductor.py: watch")
def test_each_graph_is_generated_once_and_reused_for_another_size(lowered: Any) -> None:
    assert len([graph for graph in lowered["graphs"] if graph.scheduler.nodes]) == 1


@fact("BaseSchedulerNode.get_ranges", "torch_compat/inductor.py: points of a kernel")
def test_the_ranges_of_a_kernel_name_the_symbol_of_the_tokens(lowered: Any) -> None:
    node = lowered["graphs"][0].scheduler.nodes[0]
    node = (node.get_nodes() if hasattr(node, "get_nodes") else [node])[0]
    ranges, _ = node.get_ranges()
    assert any(getattr(size, "free_symbols", None) for size in ranges), ranges


@fact("torch._inductor.metrics.num_bytes_accessed", "kernel facts, which count bytes by themselves")
def test_bytes_are_zero_while_the_log_that_counts_them_is_off(lowered: Any) -> None:
    assert lowered["bytes"] == 0


@fact("torch._inductor.metrics.generated_kernel_count", "kernel facts")
def test_generated_kernels_are_counted_on_a_cold_cache(lowered: Any) -> None:
    assert lowered["kernels"] > 0


@fact("torch._inductor.utils.fresh_cache", "torch_compat/dynamo.py: cold_caches")
@pytest.mark.slow  # 2 s
def test_a_fresh_cache_makes_inductor_generate_again() -> None:
    from torch._inductor import metrics
    from torch._inductor.utils import fresh_cache

    counts = []
    for _ in range(2):
        torch.compiler.reset()
        metrics.reset()
        with fresh_cache():
            torch.compile(add_and_scale, backend="inductor")(torch.ones(4, 8), torch.ones(4, 8))
        counts.append(metrics.generated_kernel_count)
    assert counts[0] == counts[1] > 0


@fact("Inductor's assertion of sizes", "torch_compat/dynamo.py: is_refusal")
def test_a_size_that_the_graph_was_not_made_for_is_refused_where_no_guard_is_left() -> None:
    from deepstack_harness.compile.torch_compat.dynamo import is_refusal

    torch.compiler.reset()
    run = torch.compile(
        add_and_scale,
        backend="inductor",
        fullgraph=True,
        dynamic=False,
        options={"guard_filter_fn": lambda guards: [False] * len(guards)},
    )
    run(torch.ones(4, 8), torch.ones(4, 8))
    with pytest.raises((AssertionError, RuntimeError)) as caught:
        run(torch.ones(5, 8), torch.ones(5, 8))
    assert is_refusal(caught.value), caught.value


@fact("Inductor option emulate_precision_casts", "models of 16-bit types")
def test_the_option_that_rounds_as_eager_code_does_is_there() -> None:
    from torch._inductor import config

    assert config.emulate_precision_casts in {True, False}


_NO_TOKEN = """
import torch

def attend(rows):
    return torch.nn.functional.scaled_dot_product_attention(rows, rows, rows, is_causal=True)

def drop_all(guards):
    return [False] * len(guards)

run = torch.compile(attend, backend="aot_eager", options={"guard_filter_fn": drop_all})
rows = torch.zeros(2, 4, 8)
torch._dynamo.mark_dynamic(rows, 1)
assert run(rows).shape == (2, 4, 8)
assert run(rows[:, :0]).shape == (2, 0, 8)
"""


@fact(
    "scaled_dot_product_attention, traced over tokens and called over none",
    "models/layers.py, which takes the plain kernel",
    ended=Since("2.14", "its fused CPU kernel divides by zero tokens, and the process ends with SIGFPE"),
)
@pytest.mark.slow  # 5 s
def test_attention_over_no_token_returns_in_a_graph_that_was_traced_over_some() -> None:
    command = [sys.executable, "-c", _NO_TOKEN]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, f"exit status {done.returncode}: {done.stderr[-300:]}"


@needs_triton
@fact("triton.runtime.interpreter", "torch_compat/interpreter.py: the arm h200")
def test_all_names_by_which_triton_kernels_are_interpreted_are_there() -> None:
    from deepstack_harness.compile.torch_compat.interpreter import check_names

    check_names()
