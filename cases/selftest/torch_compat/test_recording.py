"""The private torch APIs behind recorded operations and torch's own CUDA graphs do what we say of them."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from deepstack_harness.torch_compat import dynamo
from deepstack_harness.torch_compat.cudagraphs import graphs_skipped
from deepstack_harness.torch_compat.recording import OpRecorder


def test_a_replay_repeats_operations_on_their_own_tensors_in_order() -> None:
    source, written = torch.ones(3), torch.zeros(3)
    recorder = OpRecorder()
    with recorder:
        doubled = source[:2] * 2
    recorder.append(lambda: source.fill_(7))
    with recorder:  # entered again: behind what was there
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


@pytest.mark.xdist_group("inductor")
def test_a_graph_that_inductor_runs_without_a_cuda_graph_is_counted() -> None:
    dynamo.start_counting()
    torch.compile(torch.neg, options={"triton.cudagraphs": True})(torch.ones(4))
    assert graphs_skipped() == 1  # on a CPU there is none
    dynamo.start_counting()
    assert graphs_skipped() == 0
