"""Cut a graph at an op as engines do, compile each distinct piece once, and count.

Engines cut at attention and leave it uncompiled (vLLM's `splitting_ops`); what lies between
is compiled piece by piece, and a piece that was compiled already is used again.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext

import torch
from torch import Tensor, fx
from torch.fx.node import map_arg
from torch.fx.passes.split_module import split_module

from deepstack_harness.contract.facts.ordering import Subgraphs
from deepstack_harness.errors import NotMeasured
from deepstack_harness.streams import ops
from deepstack_harness.streams.layers import Stack
from deepstack_harness.streams.projection import sequential
from deepstack_harness.streams.stream_api import Lanes
from deepstack_harness.torch_compat import dynamo, splitting

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
                setattr(pieces, name, self._once(piece))
        return pieces

    def _once(self, piece: fx.GraphModule) -> "_Once":
        return self._compiled.setdefault(structure(piece), _Once(piece, self._backend))


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
            self._compiled = splitting.compile_piece(self._piece, inputs, self._backend)
        return self._compiled(*inputs)


def structure(piece: fx.GraphModule) -> str:
    """Return what a piece computes, with its values numbered: equal for pieces that differ in names only.

    Raises `NotMeasured` for a piece that holds values of its own, which no text shows.
    """
    numbers = {node: f"%{number}" for number, node in enumerate(piece.graph.nodes)}
    return "\n".join(_line(node, numbers) for node in piece.graph.nodes)


def count_subgraphs(layers: int, *, named: bool, backend: str) -> Subgraphs:
    """Compile `layers` identical ones, from cold caches, with `backend` (`aot_eager`, `inductor`).

    Raises `NotMeasured` when the answer is not that of the same layers uncompiled, or
    torch compiled other pieces than were counted.
    """
    stack, splitter = (
        Stack(layers, HIDDEN, named=named),
        Splitter(torch.ops.deepstack_harness.mix.default, backend),
    )
    x = torch.randn(TOKENS, HIDDEN, generator=torch.Generator().manual_seed(layers))
    caches = splitting.cold_caches() if backend == "inductor" else nullcontext()
    with torch.no_grad(), ops.running(stack.context(sequential, one_stream())), caches:
        dynamo.start_counting()
        start = time.perf_counter()
        answer = torch.compile(stack, backend=splitter, fullgraph=True, dynamic=False)(x)
        seconds = time.perf_counter() - start
        compiled = splitting.pieces_compiled()
        right = torch.equal(answer, stack(x))
        dynamo.start_counting()
    if not right or compiled != splitter.distinct or not compiled:
        raise NotMeasured(f"{compiled} pieces compiled, {splitter.distinct} counted, answer right: {right}")
    return Subgraphs(layers, splitter.pieces, splitter.distinct, compiled, seconds, backend)


def count_growth(layers: Sequence[int], *, named: bool, backend: str) -> tuple[Subgraphs, ...]:
    """Call `count_subgraphs` for each of `layers`; what only a first compile costs is paid before."""
    count_subgraphs(1, named=named, backend=backend)
    return tuple(count_subgraphs(each, named=named, backend=backend) for each in layers)


class _NoEvent:
    """Event of a device with one stream: nothing waits."""

    def record(self) -> None:
        """Do nothing: there is nothing to mark."""

    def wait(self) -> None:
        """Do nothing: there is nothing to wait for."""


def one_stream() -> Lanes:
    """Return lanes without a stream beside the current one, as on a CPU."""
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


def _line(node: fx.Node, numbers: dict[fx.Node, str]) -> str:
    if node.op in {"get_attr", "call_module"}:
        raise NotMeasured(f"piece holds '{node.target}': its structure does not tell all of it")
    arguments = map_arg((node.args, node.kwargs), numbers.__getitem__)
    shape = _shape(node.meta.get("example_value")) if node.op == "placeholder" else node.target
    return f"{numbers[node]} = {node.op} {shape} {arguments if node.op != 'placeholder' else ''}"


def _shape(value: object) -> str:
    if not isinstance(value, Tensor):
        raise NotMeasured(f"a piece takes {value!r}: its shape is not known")
    return f"{value.dtype} {tuple(value.shape)} {value.stride()} {value.device}"
