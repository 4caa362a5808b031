"""Small decoders whose H200 code is interpreted, right and with planted faults; called in a worker."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from typing import Any
from unittest.mock import patch

import msgspec
import torch
from torch import Tensor
from torch._inductor.select_algorithm import extern_kernels  # noqa: TID251  # to leave an operation out
from torch.nn.functional import scaled_dot_product_attention

from cases.selftest.compile.toys import HIDDEN, ROWS, Body, Toy, cut, gathered, written_back
from deepstack_harness.compile.interpreted import InterpretedSession
from deepstack_harness.compile.torch_compat import dynamo, interpreted_graphs
from deepstack_harness.contract.arm import ArmSpec
from deepstack_harness.contract.protocols import Inputs, Profile
from deepstack_harness.errors import HarnessError, StepUnavailable

CPU = torch.device("cpu")


def added(hidden: Tensor, positions: Tensor, payload: tuple[Tensor, ...], weight: Tensor) -> Tensor:
    """One kernel over as many rows as there are hidden states; the payload is expected to have as many."""
    return (hidden + payload[0]) * weight[0]


def projected(hidden: Tensor, positions: Tensor, payload: tuple[Tensor, ...], weight: Tensor) -> Tensor:
    """A library's product, and one kernel that reads it."""
    return (hidden + payload[0][: hidden.size(0)]) * (hidden @ weight[:HIDDEN])


def drawn(tokens: int, level: Tensor, position: int = 0) -> Inputs:
    """Hidden states (tokens, 8), positions that are all the same, and one level (rows, 8)."""
    generator = torch.Generator().manual_seed(tokens)
    hidden = torch.randn(tokens, HIDDEN, generator=generator)
    return Inputs(hidden, torch.full((3, tokens), position), (level,))


def rows(count: int, of: int | None = None) -> Tensor:
    """A level of `count` rows, a view of one with `of` rows."""
    return (torch.arange(float((of or count) * HIDDEN)) / HIDDEN).view(-1, HIDDEN)[:count]


def run(
    body: Body,
    steps: Sequence[Inputs],
    *,
    arm: str = "h200/drop_all/no_size_asserts",
    fault: AbstractContextManager[object] | None = None,
    compares: bool = False,
) -> dict[str, Any]:
    """Return of the last step the accesses, the distance to eager, and the graphs of all."""
    toy, profile = Toy(body), Profile(ROWS, HIDDEN, 1, torch.float32, CPU)
    toy.weight.copy_(torch.rand(ROWS, HIDDEN, generator=torch.Generator().manual_seed(1)))
    with torch.no_grad(), closing(InterpretedSession(ArmSpec.parse(arm), toy, profile)) as session:
        session.graphs.compares = compares
        for step in steps:
            eager = _eager(toy, step)
            with fault or nullcontext():
                out = session.forward(step)
            facts = session.take_accesses()
        apart = None if eager is None else (out - eager).abs().max().item()
        return {"facts": msgspec.to_builtins(facts), "apart": apart, "graphs": dynamo.graphs_built(),
                "checked": session.guards_checked}  # fmt: skip


def _eager(toy: Toy, given: Inputs) -> Tensor | None:
    payload = tuple(level.clone() for level in given.payload or ())
    try:
        out: Tensor = toy(given.hidden, given.positions, payload)
    except (RuntimeError, IndexError):
        return None
    return out


def right() -> dict[str, Any]:
    """One graph, traced with 64 rows, for three token counts."""
    return run(cut, [drawn(ROWS, rows(ROWS)), drawn(5, rows(ROWS)), drawn(17, rows(ROWS))])


class KeepsLevel(Toy):
    """A decoder that has its payload as a buffer of its own, which an engine writes between steps."""

    def __init__(self) -> None:
        super().__init__(cut)
        self.register_buffer("level", torch.zeros(ROWS, HIDDEN))
        self.level: Tensor

    def forward(self, hidden: Tensor, positions: Tensor, payload: tuple[Tensor, ...] | None) -> Tensor:
        return (hidden + self.level[: hidden.size(0)]) * self.weight[0]


def kept_in_the_module() -> dict[str, Any]:
    """Two steps, with the buffer of the module written in place between them."""
    toy, profile = KeepsLevel(), Profile(ROWS, HIDDEN, 1, torch.float32, CPU)
    with (
        torch.no_grad(),
        closing(InterpretedSession(ArmSpec.parse("h200/drop_all"), toy, profile)) as session,
    ):
        for tokens in (ROWS, 17):
            given = Inputs(torch.ones(tokens, HIDDEN), torch.zeros(3, tokens, dtype=torch.int64), None)
            toy.level.copy_(rows(ROWS) + tokens)
            out, eager = session.forward(given), toy(given.hidden, given.positions, None)
            facts = session.take_accesses()
        return {
            "facts": msgspec.to_builtins(facts), "apart": (out - eager).abs().max().item(),
            "effect": (out - given.hidden).abs().max().item(), "graphs": dynamo.graphs_built(),
        }  # fmt: skip


def guards_kept() -> dict[str, Any]:
    """Three token counts with all guards of stock torch, or with only those of shapes."""
    steps = [drawn(ROWS, rows(ROWS)), drawn(5, rows(ROWS)), drawn(17, rows(ROWS))]
    return {policy: run(cut, steps, arm=f"h200/{policy}") for policy in ("stock", "shape_env_only")}


def doubled(hidden: Tensor, positions: Tensor, payload: tuple[Tensor, ...], weight: Tensor) -> Tensor:
    """One kernel over all rows, whose number nothing looks at."""
    return (hidden + 1) * weight[0]


def unbacked() -> dict[str, Any]:
    """A graph that is traced with 1 row, which a size with a value would compile in."""
    steps = [drawn(1, rows(ROWS)), drawn(17, rows(ROWS))]
    return run(doubled, steps, arm="h200/drop_all/mark_unbacked")


def attended(hidden: Tensor, positions: Tensor, payload: tuple[Tensor, ...], weight: Tensor) -> Tensor:
    """Attention of the tokens to each other, in which Inductor multiplies by their number."""
    x = (hidden * weight[0]).view(1, 1, -1, HIDDEN)
    return scaled_dot_product_attention(x, x, x, is_causal=True)[0, 0] + payload[0]


def no_tokens() -> dict[str, Any]:
    """A step of 3 tokens, and one of none, which has a graph of its own where guards are checked."""
    steps = [drawn(3, rows(3)), drawn(0, rows(0)), drawn(4, rows(4))]
    return run(attended, steps, arm="h200/stock")


def unavailable() -> str:
    """Return the error of a kernel that cannot be interpreted, through all of torch around it."""

    def refuse(_: object, name: str) -> None:
        raise StepUnavailable(f"kernel {name} is a template")

    with patch.object(interpreted_graphs, "_check", refuse):
        try:
            run(cut, [drawn(ROWS, rows(ROWS))])
        except StepUnavailable as error:
            return str(error)
    return "nothing was refused"


def two_sessions() -> str:
    """Return the error of a second session while one is open."""
    toy, profile = Toy(cut), Profile(ROWS, HIDDEN, 1, torch.float32, CPU)
    spec = ArmSpec.parse("h200/drop_all")
    with closing(InterpretedSession(spec, toy, profile)):
        try:
            InterpretedSession(spec, toy, profile).close()
        except HarnessError as error:
            return str(error)
    return "nothing was refused"


def faults() -> dict[str, dict[str, Any]]:
    """Each planted fault under `NAME`, and the same without it under `NAME, right`."""
    first = drawn(ROWS, rows(ROWS))
    silent = patch.object(extern_kernels, "mm", lambda *_, out: out)
    return {
        "short": run(added, [first, drawn(17, rows(16))]),
        "short view": run(added, [first, drawn(17, rows(16, of=64))]),
        "short, right": run(added, [first, drawn(17, rows(17, of=64))]),
        "capacity": run(written_back, [first, drawn(17, rows(ROWS))]),
        "capacity, right": run(cut, [first, drawn(17, rows(ROWS))]),
        "index": run(gathered, [first, drawn(17, rows(ROWS), position=70)]),
        "index, right": run(gathered, [first, drawn(17, rows(ROWS), position=5)]),
        "left out": run(projected, [first, drawn(17, rows(ROWS))], fault=silent),
        "left out, right": run(projected, [first, drawn(17, rows(ROWS))], compares=True),
    }
