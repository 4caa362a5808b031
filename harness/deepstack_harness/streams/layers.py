"""K identical layers, each a dual projection behind a custom op and then the op that engines cut at."""

import torch
from torch import Tensor, nn

from deepstack_harness.streams import ops
from deepstack_harness.streams.stream_api import Lanes, Project


class Layer(nn.Module):
    """(n, h) in and out.  Nothing but sums stands around the ops: a compiler may not round them otherwise."""

    def __init__(self, name: str, hidden: int, *, named: bool) -> None:
        """Draw the weights; with `named` the projection's op takes the layer's name instead of them."""
        super().__init__()
        self.one = nn.Parameter(torch.randn(hidden, hidden) / hidden, requires_grad=False)
        self.other = nn.Parameter(torch.randn(hidden, hidden) / hidden, requires_grad=False)
        self.name = name
        self._named = named

    def forward(self, x: Tensor) -> Tensor:
        """Run one layer on x (n, hidden): project, add, mix."""
        op = ops.project_named(x, self.name) if self._named else ops.project(x, self.one, self.other)
        one, other = op
        mixed: Tensor = ops.mix(torch.relu(one) + other + x)
        return mixed


class Stack(nn.Module):
    """`layers` of them, drawn from a fixed seed: equal arguments give equal weights."""

    def __init__(self, layers: int, hidden: int, *, named: bool) -> None:
        super().__init__()
        torch.manual_seed(36795)
        self.layers = nn.ModuleList(
            Layer(f"model.layers.{number}", hidden, named=named) for number in range(layers)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Run all layers on x (n, hidden)."""
        for layer in self.layers:
            x = layer(x)
        return x

    def context(self, project: Project, lanes: Lanes) -> ops.Running:
        """Return what the ops need to know of this stack."""
        weights = {layer.name: (layer.one, layer.other) for layer in self.layers if isinstance(layer, Layer)}
        return ops.Running(project, lanes, weights)
