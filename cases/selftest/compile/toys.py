"""Small decoders whose kernels can be counted by hand, compiled as sessions compile them."""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress

import torch
from torch import Tensor, nn

from deepstack_harness.compile.captured import open_arm
from deepstack_harness.compile.kernel_probe import KernelProbe
from deepstack_harness.compile.torch_compat.inductor import NotRun, cold
from deepstack_harness.compile.torch_compat.modes import without_storage
from deepstack_harness.contract.arm import ArmSpec
from deepstack_harness.contract.facts import GraphCall, KernelFacts
from deepstack_harness.contract.protocols import Inputs, Profile, Session
from deepstack_harness.models.layers import opaque

HIDDEN = 8
ROWS = 64
TOKENS = 5
DYNAMIC = ArmSpec.parse("inductor/drop_all/no_size_asserts")
STATIC = ArmSpec.parse("inductor/stock/static")

Body = Callable[[Tensor, Tensor, tuple[Tensor, ...], Tensor], Tensor]


def cut(hidden: Tensor, positions: Tensor, payload: tuple[Tensor, ...], weight: Tensor) -> Tensor:
    """One kernel: reads 2 x n x 8 of rows and 8 of the weight, writes n x 8."""
    return (hidden + payload[0][: hidden.size(0)]) * weight[0]


def written_back(hidden: Tensor, positions: Tensor, payload: tuple[Tensor, ...], weight: Tensor) -> Tensor:
    """Two kernels: `cut`, and one that reads and writes every row of the buffer."""
    payload[0].mul_(2)
    return cut(hidden, positions, payload, weight)


def summed(hidden: Tensor, positions: Tensor, payload: tuple[Tensor, ...], weight: Tensor) -> Tensor:
    """A sum over all rows of the buffer, whose result has none."""
    return hidden * payload[0].sum(0) * weight[0]


def gathered(hidden: Tensor, positions: Tensor, payload: tuple[Tensor, ...], weight: Tensor) -> Tensor:
    """One kernel that picks n rows out of the buffer."""
    return hidden * payload[0][positions[0]] * weight[0]


def multiplied(hidden: Tensor, positions: Tensor, payload: tuple[Tensor, ...], weight: Tensor) -> Tensor:
    """Nothing but a library's kernel."""
    return hidden @ weight[:HIDDEN]


def normed(hidden: Tensor, positions: Tensor, payload: tuple[Tensor, ...], weight: Tensor) -> Tensor:
    """A sum that is written because a library needs it, and is used in the kernel that writes it as well."""
    x = hidden + payload[0][: hidden.size(0)]
    return x + (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1) * weight[0]) @ weight[:HIDDEN]


def over_positions(hidden: Tensor, positions: Tensor, payload: tuple[Tensor, ...], weight: Tensor) -> Tensor:
    """One kernel that sees no hidden states."""
    return positions.T * 2


def weight_summed(hidden: Tensor, positions: Tensor, payload: tuple[Tensor, ...], weight: Tensor) -> Tensor:
    """A kernel over all of a parameter that has as many rows as the buffer, and one over the step."""
    return hidden * weight.sum(0)


def payload_first(hidden: Tensor, positions: Tensor, payload: tuple[Tensor, ...], weight: Tensor) -> Tensor:
    """As Granite's decoder: a buffer of as many rows as the step is not cut, and attention sees the sum."""
    rows = payload[0].size(0)
    return _fitted(hidden, payload[0], weight, rows, hidden.size(0))


def hidden_first(hidden: Tensor, positions: Tensor, payload: tuple[Tensor, ...], weight: Tensor) -> Tensor:
    """The same, its sizes read in the other order."""
    tokens = hidden.size(0)
    return _fitted(hidden, payload[0], weight, payload[0].size(0), tokens)


def _fitted(hidden: Tensor, level: Tensor, weight: Tensor, rows: int, tokens: int) -> Tensor:
    x = ((hidden + (level if rows == tokens else level[:tokens])) * weight[0]).unsqueeze(0)
    return opaque(x, x, x, 1.0).squeeze(0)


class Toy(nn.Module):
    """A `protocols.Decoder` that runs `body` with a parameter (64, 8)."""

    def __init__(self, body: Body) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(ROWS, HIDDEN), requires_grad=False)
        self.body = body

    def forward(self, hidden: Tensor, positions: Tensor, payload: tuple[Tensor, ...]) -> Tensor:
        return self.body(hidden, positions, payload, self.weight)


def inputs(tokens: int, device: str = "cpu") -> Inputs:
    """Rows in storage for `ROWS`, as engines have them; a whole buffer of one level."""
    with torch.device(device):
        positions = torch.zeros(3 * ROWS, dtype=torch.int64)[: 3 * tokens].view(3, tokens)
        return Inputs(torch.ones(ROWS, HIDDEN)[:tokens].data, positions.data, (torch.ones(ROWS, HIDDEN),))


def opened(stack: ExitStack, body: Body, arm: ArmSpec = DYNAMIC, device: str = "cpu") -> Session:
    """A session of the toy that `stack` closes."""
    with torch.device(device):
        toy = Toy(body)
    session = open_arm(arm, toy, Profile(ROWS, HIDDEN, 1, torch.float32, torch.device(device)))
    stack.callback(session.close)
    return session


def facts(
    body: Body,
    tokens: Iterable[int] = (TOKENS,),
    arm: ArmSpec = DYNAMIC,
    *,
    run: bool = False,
    caches: AbstractContextManager[None] | None = None,
) -> KernelFacts:
    """Compile `body` at the first token count, call it with all of them, and read the kernels."""
    probe = KernelProbe(TOKENS, ROWS, run=run)
    with ExitStack() as stack:
        stack.enter_context(caches or cold(run=run))
        stack.enter_context(torch.no_grad())
        stack.enter_context(nullcontext() if run else without_storage())
        session = opened(stack, body, arm)
        stack.enter_context(probe)
        for count in tokens:
            with suppress(NotRun):
                session.forward(inputs(count))
    return probe.facts()


def last(body: Body, tokens: Iterable[int] = (TOKENS,), arm: ArmSpec = DYNAMIC) -> GraphCall:
    """The last call, generated only."""
    return facts(body, tokens, arm).calls[-1]
