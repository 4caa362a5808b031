"""Compare the projection behind its custom op with the sequential one, bit by bit, eager and compiled."""

from collections.abc import Sequence

import torch
from torch import Tensor

from deepstack_harness.contract.facts.ordering import OpResult
from deepstack_harness.errors import NotMeasured
from deepstack_harness.streams import ops
from deepstack_harness.streams.bitwise import different_bits
from deepstack_harness.streams.dual_streams import DualStream
from deepstack_harness.streams.layers import Stack
from deepstack_harness.streams.projection import sequential
from deepstack_harness.streams.stream_api import Lanes
from deepstack_harness.streams.subgraphs import HIDDEN, TOKENS, one_stream
from deepstack_harness.torch_compat import dynamo

EAGER = "eager"
LAYERS = 4


def observe_results(
    way: DualStream, backends: Sequence[str], lanes: Lanes | None = None
) -> tuple[OpResult, ...]:
    """Run four layers uncompiled and with each backend on the CPU; without `lanes` on one stream.

    Raises `NotMeasured` when nothing was compiled, or the layers do nothing.
    """
    stack = Stack(LAYERS, HIDDEN, named=way.named)
    x = torch.randn(TOKENS, HIDDEN, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        with ops.running(stack.context(sequential, one_stream())):
            right = stack(x)
        if not right.isfinite().all() or torch.equal(right, x):
            raise NotMeasured("the layers give nothing that could be compared")
        with ops.running(stack.context(way.project, lanes or one_stream())):
            eager = OpResult(EAGER, right.numel(), different_bits(stack(x), right), 0)
            return eager, *(_compiled(stack, x, right, backend) for backend in backends)


def _compiled(stack: Stack, x: Tensor, right: Tensor, backend: str) -> OpResult:
    dynamo.start_counting()
    answer = torch.compile(stack, backend=backend, fullgraph=True, dynamic=False)(x)
    graphs = dynamo.graphs_built()
    dynamo.start_counting()
    if not graphs:
        raise NotMeasured(f"backend {backend} compiled nothing")
    return OpResult(backend, right.numel(), different_bits(answer, right), graphs)
