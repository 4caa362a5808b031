"""Count the distinct subgraphs of K equal layers, cut where engines cut, and compare their results.

Engines cut at attention and leave it uncompiled (vLLM's `splitting_ops`); what lies between is
compiled piece by piece, and a piece that was compiled already is used again.  A layer is a dual
projection in a custom op, and then the op that engines cut at. `project_named` takes the layer's name and
looks the rest up, as vLLM #36795 had it: the name is a constant in the graph, so that no two layers are
alike.  `project` takes what it needs as arguments.  Results are compared with the
sequential projection, eager and compiled.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, fx, nn
from torch.fx.node import map_arg
from torch.fx.passes.split_module import split_module

from deepstack_harness.audit.streams.device import Lanes, Project, sequential
from deepstack_harness.audit.streams.projections import DualStream
from deepstack_harness.audit.streams.recording import different_bits
from deepstack_harness.compile.torch_compat import dynamo
from deepstack_harness.contract.facts import OpResult, Subgraphs
from deepstack_harness.errors import NotMeasured

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


class Layer(nn.Module):
    """(n, h) in and out. Around the ops are only sums, which no compiler rounds in another way."""

    def __init__(self, name: str, hidden: int, *, named: bool) -> None:
        """Draw the weights; with `named` the projection's op takes the layer's name instead of them."""
        super().__init__()
        self.one = nn.Parameter(torch.randn(hidden, hidden) / hidden, requires_grad=False)
        self.other = nn.Parameter(torch.randn(hidden, hidden) / hidden, requires_grad=False)
        self.name = name
        self._named = named

    def forward(self, x: Tensor) -> Tensor:
        """Run one layer on x (n, hidden): project, add, mix."""
        op = project_named(x, self.name) if self._named else project(x, self.one, self.other)
        one, other = op
        mixed: Tensor = mix(torch.relu(one) + other + x)
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

    def context(self, project: Project, lanes: Lanes) -> Running:
        """Return what the ops need to know of this stack."""
        weights = {layer.name: (layer.one, layer.other) for layer in self.layers if isinstance(layer, Layer)}
        return Running(project, lanes, weights)


HIDDEN, TOKENS = 16, 5
LAYERS = (1, 4, 16)


class Splitter:
    """A Dynamo backend: cuts at `cut_at`, and compiles each distinct piece between with `backend`.

    `pieces` counts what lies between the cuts, `distinct` what of it was compiled.
    """

    def __init__(self, cut_at: object, backend: str) -> None:
        self.pieces = 0
        self._cut_at = cut_at
        self._backend = backend
        self._compiled: dict[str, _Once] = {}

    @property
    def distinct(self) -> int:
        """Pieces that differ in more than the names of their values."""
        return len(self._compiled)

    def __call__(self, graph: fx.GraphModule, inputs: Sequence[Tensor]) -> Callable[..., object]:
        """Split a graph, as Dynamo calls a backend; the shapes of `inputs` are not looked at."""
        pieces = split_module(graph, graph, _assign(graph, self._cut_at))
        for name, piece in pieces.named_children():
            assert isinstance(piece, fx.GraphModule)
            if not any(node.target is self._cut_at for node in piece.graph.nodes):
                self.pieces += 1
                setattr(
                    pieces, name, self._compiled.setdefault(structure(piece), _Once(piece, self._backend))
                )
        return pieces


class _Once(torch.nn.Module):
    """A piece that is compiled when it is first called, with the shapes of that call."""

    def __init__(self, piece: fx.GraphModule, backend: str) -> None:
        super().__init__()
        self._piece = piece
        self._backend = backend
        self._compiled: Callable[..., object] | None = None

    def forward(self, *inputs: Tensor) -> object:
        """Return what the piece gives."""
        if self._compiled is None:
            self._compiled = dynamo.compile_piece(self._piece, inputs, self._backend)
        return self._compiled(*inputs)


def structure(piece: fx.GraphModule) -> str:
    """Return what a piece computes, with its values numbered: equal for pieces that differ in names only.

    Raises `NotMeasured` for a piece that holds values of its own, which no text shows.
    """
    numbers = {node: f"%{number}" for number, node in enumerate(piece.graph.nodes)}
    lines = []
    for node, number in numbers.items():
        if node.op in {"get_attr", "call_module"}:
            raise NotMeasured(f"piece holds '{node.target}': its structure does not tell all of it")
        what = f"{node.target} {map_arg((node.args, node.kwargs), numbers.__getitem__)}"
        if node.op == "placeholder":
            value = node.meta.get("example_value")
            if not isinstance(value, Tensor):
                raise NotMeasured(f"a piece takes {value!r}: its shape is not known")
            what = f"{value.dtype} {tuple(value.shape)} {value.stride()} {value.device}"
        lines.append(f"{number} = {node.op} {what}")
    return "\n".join(lines)


def count_subgraphs(layers: int, *, named: bool, backend: str) -> Subgraphs:
    """Compile `layers` identical ones, from cold caches, with `backend` (`aot_eager`, `inductor`).

    Raises `NotMeasured` when the output is not that of the same layers uncompiled, or torch compiled other
    pieces than were counted.
    """
    stack, splitter = (
        Stack(layers, HIDDEN, named=named),
        Splitter(torch.ops.deepstack_harness.mix.default, backend),
    )
    x = torch.randn(TOKENS, HIDDEN, generator=torch.Generator().manual_seed(layers))
    caches = dynamo.cold_caches() if backend == "inductor" else nullcontext()
    with torch.no_grad(), running(stack.context(sequential, one_stream())), caches:
        dynamo.start_counting()
        start = time.perf_counter()
        output = torch.compile(stack, backend=splitter, fullgraph=True, dynamic=False)(x)
        seconds = time.perf_counter() - start
        compiled = dynamo.pieces_compiled()
        right = torch.equal(output, stack(x))
        dynamo.start_counting()
    if not right or compiled != splitter.distinct or not compiled:
        raise NotMeasured(f"{compiled} pieces compiled, {splitter.distinct} counted, answer right: {right}")
    return Subgraphs(layers, splitter.pieces, splitter.distinct, compiled, seconds, backend)


class _NoEvent:
    """Event of a device with one stream: nothing waits."""

    def record(self) -> None:
        """Do nothing: there is nothing to mark."""

    def wait(self) -> None:
        """Do nothing: there is nothing to wait for."""


def one_stream() -> Lanes:
    """Return lanes with no stream but the current one, as on a CPU."""
    return Lanes(_NoEvent(), (), (), lambda _: nullcontext(), lambda *_: None)


def _assign(graph: fx.GraphModule, cut_at: object) -> Callable[[fx.Node], int]:
    """Give a number to each piece: the op that is cut at is one of its own."""
    numbers: dict[fx.Node, int] = {}
    current = 0
    for node in graph.graph.nodes:
        cut = node.target is cut_at
        current += cut
        numbers[node] = current
        current += cut
    return numbers.__getitem__


EAGER = "eager"


def observe_results(
    way: DualStream, backends: Sequence[str], lanes: Lanes | None = None
) -> tuple[OpResult, ...]:
    """Run four layers uncompiled and with each backend on the CPU; without `lanes` on one stream.

    Raises `NotMeasured` when nothing was compiled, or the layers do nothing.
    """
    stack = Stack(4, HIDDEN, named=way.named)
    x = torch.randn(TOKENS, HIDDEN, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        with running(stack.context(sequential, one_stream())):
            right = stack(x)
        if not right.isfinite().all() or torch.equal(right, x):
            raise NotMeasured("the layers give nothing that could be compared")
        with running(stack.context(way.project, lanes or one_stream())):
            results = [OpResult(EAGER, right.numel(), different_bits(stack(x), right), 0)]
            for backend in backends:
                dynamo.start_counting()
                output = torch.compile(stack, backend=backend, fullgraph=True, dynamic=False)(x)
                graphs = dynamo.graphs_built()
                dynamo.start_counting()
                if not graphs:
                    raise NotMeasured(f"backend {backend} compiled nothing")
                results.append(OpResult(backend, right.numel(), different_bits(output, right), graphs))
            return tuple(results)
