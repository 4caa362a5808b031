"""Modes record and replay operations, keep a stream busy, and make this process a rank of any world."""

import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from deepstack_harness.compile.torch_compat import modes
from deepstack_harness.compile.torch_compat.modes import OpRecorder, fake_world, without_storage
from deepstack_harness.models.engine import PeerFailed, announce_failure, gather_rows


def test_a_replay_repeats_operations_on_their_own_tensors_in_order() -> None:
    source, written = torch.ones(3), torch.zeros(3)
    recorder = OpRecorder()
    with recorder:
        doubled = source[:2] * 2
    recorder.append(lambda: source.fill_(7))
    with recorder:  # entered again: after what was there
        written.copy_(source)
        written[0].zero_()
    source.fill_(5)
    recorder.replay()
    assert (doubled.tolist(), written.tolist()) == ([10, 10], [0, 7, 7])


def test_every_result_of_an_operation_is_written_again() -> None:
    source = torch.tensor([3.0, 1.0, 2.0])
    with OpRecorder() as recorder:
        values, indices = source.topk(2)
    source.copy_(torch.tensor([0.0, 8.0, 9.0]))
    recorder.replay()
    assert (values.tolist(), indices.tolist()) == ([9, 8], [2, 1])


def test_a_view_that_cannot_be_written_is_replayed() -> None:
    source = torch.ones(1, 2)
    with OpRecorder() as recorder:
        wide = source.expand(3, 2)
    source.fill_(4)
    recorder.replay()
    assert wide.tolist() == [[4, 4]] * 3


@pytest.mark.parametrize(
    ("work", "allocated"),
    [
        (lambda level: level[:2], 0),
        (lambda level: level[:2].zero_(), 0),
        (lambda level: level.unbind(), 0),
        (lambda level: level.clone(), 1),
        (lambda level: level.copy_(torch.zeros(4)), 1),
        (lambda level: level.topk(2), 2),
    ],
)
def test_results_in_storage_of_their_own_are_counted(
    work: Callable[[Tensor], object], allocated: int
) -> None:
    level = torch.ones(4)
    with OpRecorder() as recorder:
        work(level)
    assert recorder.allocated == allocated


@pytest.mark.parametrize("work", [lambda x: x.sum().item(), torch.nonzero, lambda x: bool(x.any())])
def test_what_depends_on_data_is_refused_as_cuda_refuses_it(work: Callable[[Tensor], object]) -> None:
    with pytest.raises(RuntimeError, match="not permitted while a graph is captured"), OpRecorder():
        work(torch.ones(4))


def test_rows_picked_by_integers_are_recorded() -> None:
    table, places, kept = torch.arange(4.0), torch.tensor([0, 1]), torch.tensor([True, False, True, False])
    with OpRecorder() as recorder:
        picked = table[places]
    places.fill_(3)
    recorder.replay()
    assert picked.tolist() == [3, 3]
    with pytest.raises(RuntimeError, match="not permitted while a graph is captured"), OpRecorder():
        table[kept]


@pytest.mark.xdist_group("aot_eager")
@pytest.mark.gpu
def test_a_delay_lasts_on_its_own_stream() -> None:
    other = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(other):
        modes.spin(200_000_000)
    assert not other.query()
    assert torch.cuda.current_stream().query()
    other.synchronize()


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
        announce_failure(64)
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


@pytest.mark.xdist_group("inductor")
def test_what_has_no_storage_may_be_of_any_size() -> None:
    with without_storage():
        assert (torch.ones(2**40) + 1).shape == (2**40,)


@pytest.mark.slow  # costs time where it fails, and no more
def test_recording_operations_does_not_import_dynamo() -> None:
    program = (
        "import sys, torch\n"
        "from deepstack_harness.compile.torch_compat.modes import OpRecorder\n"
        "x = torch.zeros(())\n"
        "recorder = OpRecorder()\n"
        "with recorder: x.add_(1)\n"
        "recorder.replay()\n"
        "sys.exit(int(x) != 2 or 'torch._dynamo' in sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
