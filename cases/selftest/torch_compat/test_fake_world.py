"""torch's fake process group does what `torch_compat.fake_world` says of it, on this torch."""

import pytest
import torch
import torch.distributed as dist

from deepstack_harness.callers.collectives import PeerFailed, gather_rows, tell_failure
from deepstack_harness.torch_compat.fake_world import fake_world


def test_this_process_is_any_rank_of_any_world() -> None:
    for rank, ranks in ((0, 8), (300, 512), (511, 512)):
        with fake_world(rank, ranks):
            assert (dist.get_rank(), dist.get_world_size()) == (rank, ranks)
    assert not dist.is_initialized()


def test_it_is_no_rank_any_more_after_an_error() -> None:
    with pytest.raises(PeerFailed), fake_world(0, 8):
        raise PeerFailed
    assert not dist.is_initialized()


def test_collectives_have_real_shapes_and_copies_of_the_own_rows() -> None:
    rows = torch.arange(6.0).reshape(2, 3)
    with fake_world(5, 64):
        gathered = gather_rows(rows, 64)
        tell_failure(64)
    assert torch.equal(gathered, rows.repeat(64, 1))


def test_no_rows_are_gathered_as_no_rows() -> None:
    with fake_world(1, 8):
        assert gather_rows(torch.empty(0, 3), 8).shape == (0, 3)


def test_the_collective_is_one_operation_of_a_graph_for_any_number_of_rows() -> None:
    graphs = []

    def backend(graph: torch.fx.GraphModule, _inputs: list[torch.Tensor]) -> torch.fx.GraphModule:
        graphs.append([node.target for node in graph.graph.nodes if node.op == "call_function"])
        return graph

    compiled = torch.compile(lambda rows: gather_rows(rows, 8), backend=backend, fullgraph=True, dynamic=True)
    with fake_world(1, 8):
        assert [compiled(torch.ones(rows, 3)).shape for rows in (4, 2)] == [(32, 3), (16, 3)]
    assert graphs == [[torch.ops.deepstack_harness.gather_rows.default]]
