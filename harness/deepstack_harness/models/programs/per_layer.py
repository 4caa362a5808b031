"""Inputs of each layer, which an engine has to bring to all of them."""

import torch
from torch import Tensor

from deepstack_harness.models.programs.graphs import SmallGraph, compile_as_engines_do
from deepstack_harness.models.programs.trace import CAPACITY, HIDDEN, LEVELS, WIDTH, drawn, played

matrices = drawn(LEVELS, HIDDEN, HIDDEN) / HIDDEN**0.5
gates = drawn(LEVELS, HIDDEN, WIDTH) / HIDDEN**0.5
projections = drawn(LEVELS, WIDTH, HIDDEN) / WIDTH**0.5


def layers(hidden: Tensor, per_layer: Tensor, first: int = 0, last: int = LEVELS - 1) -> Tensor:
    """Run layers of the family in small: (n, HIDDEN) and inputs (LEVELS, n, WIDTH) -> (n, HIDDEN)."""
    for index in range(first, last + 1):  # each adds its input times a gate
        hidden = torch.tanh(hidden @ matrices[index])
        gate = torch.nn.functional.gelu(hidden @ gates[index])
        hidden = hidden + (gate * per_layer[index]) @ projections[index]
    return hidden


class PerLayerEngine:
    """An engine in two micro-batches."""

    def forward(self, hidden: Tensor, per_layer: Tensor) -> Tensor:
        half, outs = (len(hidden) + 1) // 2, []
        for first in (0, half):
            part = hidden[first : first + half]
            rows = per_layer[:, first : first + half]
            outs.append(layers(part, rows))
        return torch.cat(outs)

    def wrong(self, op: str, hidden: Tensor, rows: Tensor) -> str:
        off = float((self.forward(hidden, rows) - layers(hidden, rows)).abs().max())
        return f"off from eager by {off:.3g}" if off > 1e-4 else ""

    def faults(self) -> list[str]:
        return played(self.wrong)


class StageTensors:
    """What one stage sends to the next: only [name] reads it."""

    def __init__(self, **tensors: Tensor) -> None:
        self.tensors = tensors

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name]


class PerLayerStages(PerLayerEngine):
    """An engine whose later layers are on another machine."""

    def forward(self, hidden: Tensor, per_layer: Tensor) -> Tensor:
        sent = StageTensors(hidden=layers(hidden, per_layer, last=0), per_layer=per_layer)
        return self.later_stage(sent)

    def later_stage(self, sent: StageTensors) -> Tensor:
        rows = sent["per_layer"]
        return layers(sent["hidden"], rows, first=1)


class StageReplays(PerLayerStages):
    """An engine that captures its later stage with a slot for whatever is sent."""

    def __init__(self) -> None:
        self.slots = StageTensors(
            hidden=torch.zeros(CAPACITY, HIDDEN), per_layer=torch.zeros(LEVELS, CAPACITY, WIDTH)
        )
        self.graph = SmallGraph(super().later_stage, self.slots)

    def later_stage(self, sent: StageTensors) -> Tensor:
        copied = ("hidden", "per_layer")
        for name in copied:
            self.slots[name].copy_(sent[name])
        return self.graph.replay()


class PerLayerCompiled(PerLayerEngine):
    """An engine that copies inputs into an attribute, and compiles a step with what it had at load."""

    def __init__(self) -> None:
        self.embeddings = torch.zeros(LEVELS, CAPACITY, WIDTH)  # no parameter, no registered buffer
        self.state, self.run = self.embeddings.clone(), compile_as_engines_do(self.step)

    def step(self, state: Tensor, hidden: Tensor, per_layer: Tensor) -> Tensor:
        rows = per_layer
        return layers(hidden, rows)

    def forward(self, hidden: Tensor, per_layer: Tensor) -> Tensor:
        self.embeddings[:, : len(hidden)] = per_layer
        for dim, tensor in enumerate((hidden, per_layer)):
            torch._dynamo.mark_dynamic(tensor, dim)
        return self.run(self.state, hidden, per_layer)


class PerLayerReplays(PerLayerEngine):
    """An engine that replays a graph of CAPACITY tokens."""

    def __init__(self) -> None:
        self.slots = torch.zeros(CAPACITY, HIDDEN), torch.zeros(LEVELS, CAPACITY, WIDTH)
        self.graph = SmallGraph(layers, *self.slots)

    def forward(self, hidden: Tensor, per_layer: Tensor) -> Tensor:
        given = True
        self.slots[0].copy_(hidden)
        self.slots[1].copy_(per_layer if given else self.slots[1])
        return self.graph.replay()


class RoundingPerLayer(PerLayerEngine):
    """An engine that rounds inputs to 256 steps of the largest value."""

    def __init__(self) -> None:
        self.buffer = torch.zeros(LEVELS, CAPACITY, WIDTH)

    def wrong(self, op: str, hidden: Tensor, rows: Tensor) -> str:
        self.count = int(rows[0].any(1).sum())
        self.buffer[:, : self.count] = rows[:, : self.count]  # the rest is what an earlier step left
        other = self.buffer.clone()
        other[:, self.count :] = -256
        one, two = (layers(hidden, self.rounded(some[:, : len(hidden)])) for some in (self.buffer, other))
        changed = int((one != two)[: self.count].any(dim=1).sum())
        return f"padding changes {changed} of {self.count} real rows" if changed else ""

    def rounded(self, per_layer: Tensor) -> Tensor:
        real = per_layer[:, : self.count]
        step = real.abs().max() / 128
        return (per_layer / step).round() * step
