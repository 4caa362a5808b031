"""The projections behind custom ops, as engines must have them under torch.compile, and the op they cut at.

`project_named` takes the layer's name and looks the rest up, as vLLM #36795 had it:
the name stands in the graph as a constant, so that no two layers are alike.
`project` takes what it needs as arguments.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from deepstack_harness.streams.stream_api import Lanes, Project

NAMESPACE = "deepstack_harness"


@dataclass(frozen=True)
class Running:
    """Context of the ops: how to project on which streams, and the weights of each layer by its name."""

    project: Project
    lanes: Lanes
    weights: Mapping[str, tuple[Tensor, Tensor]]


_RUNNING: list[Running] = []
"""The innermost is used.  An engine has such a context too (vllm/forward_context.py)."""


@contextmanager
def running(context: Running) -> Iterator[None]:
    """Let the ops use `context`, while open."""
    _RUNNING.append(context)
    try:
        yield
    finally:
        _RUNNING.pop()


@torch.library.custom_op(f"{NAMESPACE}::project_named", mutates_args=())
def project_named(x: Tensor, layer: str) -> tuple[Tensor, Tensor]:
    """Project x (n, hidden) through both projections (out, hidden) of the layer with that name."""
    context = _RUNNING[-1]
    return _both(context, x, context.weights[layer])


@torch.library.custom_op(f"{NAMESPACE}::project", mutates_args=())
def project(x: Tensor, one: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    """Project x (n, hidden) through two projections (out, hidden)."""
    return _both(_RUNNING[-1], x, (one, other))


@torch.library.custom_op(f"{NAMESPACE}::mix", mutates_args=())
def mix(x: Tensor) -> Tensor:
    """Mix x (n, hidden) in place of attention, where engines cut the graph: never compiled itself."""
    return x / 2


@project_named.register_fake
def _(x: Tensor, layer: str) -> tuple[Tensor, Tensor]:
    return _shapes(x, *_RUNNING[-1].weights[layer])


@project.register_fake
def _(x: Tensor, one: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    return _shapes(x, one, other)


@mix.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def _both(context: Running, x: Tensor, weights: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    one, other = context.project(x, weights, context.lanes)
    return one, other


def _shapes(x: Tensor, one: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    return x.new_empty(len(x), len(one)), x.new_empty(len(x), len(other))
