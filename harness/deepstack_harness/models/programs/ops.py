"""Ops that a compiler cannot look into: what runs in them, and where they cut a graph."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from deepstack_harness.models.programs.engines import CompiledEngine, weights
from deepstack_harness.models.programs.trace import CAPACITY, HIDDEN, drawn

attended: list[int] = []


def opaque(work: Callable[..., Any], fake: Callable[..., Any]) -> Any:
    made = torch.library.custom_op(f"shown::{work.__name__}", work, mutates_args=())
    made.register_fake(fake)
    return made


def attend(hidden: Tensor) -> Tensor:
    attended.append(len(hidden))
    return hidden.cumsum(0) / torch.arange(1, len(hidden) + 1).unsqueeze(1)  # causal


attention = opaque(attend, torch.empty_like)


class AttendingEngine(CompiledEngine):
    """An engine with attention in its graph, whose payload is read first."""

    def compiled(self, model: Callable[..., Any]) -> Callable[..., Any]:
        options: dict[str, Any] = {
            "guard_filter_fn": torch.compiler.skip_all_guards_unsafe,
            "size_asserts": False,
        }
        return torch.compile(model, fullgraph=True, dynamic=False, backend="inductor", options=options)

    def model(self, hidden: Tensor, payload: Sequence[Tensor]) -> Tensor:
        rows, tokens = len(payload[0]), len(hidden)
        for level, weight in zip(payload, weights, strict=False):
            hidden = attention((hidden + (level if rows == tokens else level[:tokens])) @ weight)
        return hidden

    def wrong(self, op: str, hidden: Tensor, rows: Tensor) -> str:
        hidden = torch.zeros(CAPACITY, HIDDEN)[: len(hidden)].copy_(hidden)  # a static input
        eager = self.model(hidden, tuple(rows))
        attended.clear()
        off = float((self.forward(hidden)[: len(hidden)] - eager).abs().max())
        count = max(attended)
        wrong = off > 1e-4 or count > len(hidden)
        return f"attention worked on {count} rows; off from eager by {off:.3g}" if wrong else ""


PROJECTIONS = {f"layers.{n}": drawn(2, HIDDEN, HIDDEN) / HIDDEN for n in range(16)}


def project_named(hidden: Tensor, layer: str) -> tuple[Tensor, Tensor]:
    one, other = PROJECTIONS[layer]  # by the layer's name, as an engine's forward context has them
    return hidden @ one, hidden @ other  # an engine: on two streams


def project(hidden: Tensor, one: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    return hidden @ one, hidden @ other


def like_both(hidden: Tensor, *given: Any) -> tuple[Tensor, Tensor]:
    return torch.empty_like(hidden), torch.empty_like(hidden)


named, unnamed = opaque(project_named, like_both), opaque(project, like_both)


def layer(hidden: Tensor, name: str) -> Tensor:
    one, other = unnamed(hidden, *PROJECTIONS[name])
    return attention(torch.relu(one) + other + hidden)


def distinct_pieces(graph: fx.GraphModule) -> set[str]:
    calls = [node for node in graph.graph.nodes if node.op == "call_function"]
    lines = [f"{node.target} {[arg for arg in node.args if not isinstance(arg, fx.Node)]}" for node in calls]
    # Engines cut the graph at attention. Without the names of values, equal pieces are compiled once.
    return {piece.strip() for piece in "\n".join(lines).split("shown.attend.default []")} - {""}


def pieces_of(layers: int) -> set[str]:
    counted: set[str] = set()

    def backend(graph: fx.GraphModule, inputs: object) -> Callable[..., Any]:
        counted.update(distinct_pieces(graph))
        return graph.forward

    def model(hidden: Tensor) -> Tensor:
        for name in list(PROJECTIONS)[:layers]:
            hidden = layer(hidden, name)
        return hidden

    torch.compile(model, backend=backend, fullgraph=True)(drawn(5, HIDDEN))
    return counted


def pieces_of_layers() -> list[str]:
    counts = {layers: len(pieces_of(layers)) for layers in (1, 4, 16)}
    return [f"{layers} equal layers: {n} pieces to compile, not 1" for layers, n in counts.items() if n != 1]
