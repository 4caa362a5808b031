"""The projection in its custom op: the same bits when compiled, and how many subgraphs it makes."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, fx, nn

from deepstack_harness.audit.streams import device, subgraphs
from deepstack_harness.audit.streams.device import Lanes
from deepstack_harness.audit.streams.projections import DUAL, SEQUENTIAL
from deepstack_harness.audit.streams.subgraphs import count_subgraphs, observe_results, one_stream, structure
from deepstack_harness.compile.torch_compat import dynamo
from deepstack_harness.errors import NotMeasured

pytestmark = pytest.mark.xdist_group("aot_eager")


def wrong(x: Tensor, weights: tuple[Tensor, ...], lanes: Lanes) -> tuple[Tensor, ...]:
    one, other = device.sequential(x, weights, lanes)
    return one + 1, other


@pytest.mark.parametrize("named", [True, False])
def test_the_op_gives_the_sequential_bits_eager_and_compiled(named: bool) -> None:
    eager, compiled = observe_results(replace(DUAL, named=named), ["aot_eager"])
    assert (eager.how, eager.different, eager.graphs) == ("eager", 0, 0)
    assert (compiled.how, compiled.different, compiled.graphs) == ("aot_eager", 0, 1)
    assert eager.elements == compiled.elements == 5 * 16


def test_an_op_that_gives_other_bits_is_seen_eager_and_compiled() -> None:
    eager, compiled = observe_results(replace(SEQUENTIAL, project=wrong), ["aot_eager"])
    assert min(eager.different, compiled.different) > 0


def nothing(x: Tensor, weights: tuple[Tensor, ...], lanes: Lanes) -> tuple[Tensor, ...]:
    return tuple(rows * float("nan") for rows in device.sequential(x, weights, lanes))


def test_layers_that_give_nothing_and_graphs_that_are_none_are_no_measurement(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(subgraphs, "sequential", nothing)
        with pytest.raises(NotMeasured, match="^the layers give nothing that could be compared$"):
            observe_results(DUAL, [])
    monkeypatch.setattr(torch, "compile", lambda module, **_: module)
    with pytest.raises(NotMeasured, match="^backend aot_eager compiled nothing$"):
        observe_results(DUAL, ["aot_eager"])


def test_a_name_in_the_graph_makes_every_layer_its_own_subgraph() -> None:
    # Of 1, 4 and 16 layers: cases/test_dual_stream.py.
    named = count_subgraphs(3, named=True, backend="aot_eager")
    fixed = count_subgraphs(3, named=False, backend="aot_eager")
    assert (named.pieces, named.distinct, named.compiled) == (3, 3, 3)
    assert (fixed.pieces, fixed.distinct, fixed.compiled) == (3, 1, 1)


def zeros(*_: object) -> Callable[..., Tensor]:
    return lambda *_: torch.zeros(5, 16)


def test_a_wrong_answer_or_another_count_is_no_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dynamo, "pieces_compiled", lambda: 3)
    with pytest.raises(NotMeasured, match="^3 pieces compiled, 2 counted"):
        count_subgraphs(2, named=True, backend="aot_eager")
    monkeypatch.setattr(dynamo, "compile_piece", zeros)
    with pytest.raises(NotMeasured, match="^3 pieces compiled, 3 counted, answer right: False"):
        count_subgraphs(3, named=True, backend="aot_eager")


class Small(nn.Module):
    """Something to trace; `label` is a constant in the graph."""

    def __init__(self, label: str = "one", held: bool = False) -> None:
        super().__init__()
        self.label = label
        self.weight = nn.Parameter(torch.ones(2)) if held else None

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        first, second = torch.ops.deepstack_harness.project_named(x + y, self.label)
        return first, second if self.weight is None else second * self.weight


def traced(module: nn.Module, rows: int = 2, **renamed: str) -> fx.GraphModule:
    graph = fx.symbolic_trace(module)
    for node in graph.graph.nodes:
        node.name = renamed.get(node.name, node.name)
        if node.op == "placeholder":
            node.meta["example_value"] = torch.ones(rows, 2)
    graph.recompile()
    return graph


def test_equal_structure_is_found_under_other_names_only() -> None:
    one = structure(traced(Small()))
    assert structure(traced(Small(), x="l_layers_3_x", add="sum_of_both")) == one
    assert structure(traced(Small("two"))) != one
    assert structure(traced(Small(), rows=3)) != one

    class Turned(Small):
        def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            return super().forward(y, x)

    assert structure(traced(Turned())) != one


def test_a_piece_that_holds_values_is_not_compared_by_its_text() -> None:
    with pytest.raises(NotMeasured, match="piece holds 'weight'"):
        structure(traced(Small(held=True)))


def test_a_piece_whose_inputs_are_unknown_is_not_compared() -> None:
    graph = traced(Small())
    next(iter(graph.graph.nodes)).meta.clear()
    with pytest.raises(NotMeasured, match="a piece takes None: its shape is not known"):
        structure(graph)


def test_the_innermost_context_is_used_and_gone_afterwards() -> None:
    def twice(x: Tensor, weights: tuple[Tensor, ...], lanes: Lanes) -> tuple[Tensor, ...]:
        return tuple(2 * rows for rows in device.sequential(x, weights, lanes))

    x, weight = torch.ones(1, 2), torch.eye(2)
    with subgraphs.running(subgraphs.Running(device.sequential, one_stream(), {"one": (weight, weight)})):
        with subgraphs.running(subgraphs.Running(twice, one_stream(), {"one": (-weight, weight)})):
            assert subgraphs.project(x, weight, weight)[0].tolist() == [[2, 2]]
            assert subgraphs.project_named(x, "one")[0].tolist() == [[-2, -2]]
        assert subgraphs.project(x, weight, weight)[0].tolist() == [[1, 1]]
        assert subgraphs.project_named(x, "one")[0].tolist() == [[1, 1]]
    with pytest.raises(IndexError):
        subgraphs.project(x, weight, weight)
