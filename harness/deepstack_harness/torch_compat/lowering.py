"""Graphs that Inductor lowers, and every call of them with the sizes it was made with.

`watch` stands at `GraphLowering.compile_to_module`, where code is generated for
both backends.  What a symbol stands for is read from the arguments of the call, in
the order in which the generated wrapper reads them
(`PythonWrapperCodegen.codegen_inputs`): plain symbols first, then sizes and
strides of tensors.  Values at compile time (hints) are never used: a graph traced
at one length may be called with another, and its text does not change by that.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import chain
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import sympy
import torch
from torch._dynamo import config as dynamo_config
from torch._dynamo.utils import counters
from torch._guards import TracingContext
from torch._inductor import config, ir
from torch._inductor.codegen.triton import TritonScheduling
from torch._inductor.graph import GraphLowering
from torch._inductor.scheduler import BaseSchedulerNode
from torch._inductor.utils import Placeholder

from deepstack_harness.torch_compat.scheduler import ScannedKernel, scan

Symbols = Mapping[sympy.Symbol, int]

_HITS = (("inductor", "fxgraph_cache_hit"), ("aot_autograd", "autograd_cache_hit"))


class NotRun(Exception):
    """Exception that ends a call of a graph which is generated only: nothing is there to run."""


@dataclass(frozen=True)
class Function:
    """A Triton kernel: its name and source, the operations it does, and its numels by prefix (`x`, `r0_`)."""

    name: str
    source: str
    operations: frozenset[str]
    numels: Mapping[str, sympy.Expr]


@dataclass(frozen=True)
class Lowered:
    """One graph: its kernels, and what is needed to bind its symbols at a call.

    `parameters` are inputs that keep their address between calls (weights).
    `sizes_of` has the symbols that the sizes of each argument watched for became, and
    `equal` those that tracing found to be equal to one of them: both may stand in sizes.
    """

    kernels: tuple[ScannedKernel, ...]
    functions: tuple[Function, ...]
    inputs: Mapping[str, sympy.Expr | ir.TensorBox]
    parameters: frozenset[str]
    sizes_of: Mapping[str, Sequence[sympy.Symbol]]
    equal: frozenset[sympy.Symbol] = frozenset()

    @property
    def token_symbols(self) -> frozenset[sympy.Symbol]:
        """The symbols of all arguments watched for."""
        return frozenset(chain(*self.sizes_of.values())) | self.equal

    def bind(self, arguments: Sequence[Any]) -> Symbols:
        """Return the value of each symbol in a call with these arguments, as the generated wrapper has it."""
        bound: dict[sympy.Symbol, int] = {}
        given = list(zip(self.inputs.values(), arguments, strict=True))
        for value, argument in given:
            if isinstance(value, sympy.Symbol):
                bound.setdefault(value, int(argument))
        for value, argument in given:
            if isinstance(value, ir.TensorBox):
                _bind_tensor(bound, value, argument)
        return bound


@dataclass
class Watched:
    """Record of `watch`; a call is its graph's index, and what its symbols stood for.

    `unread` says of graphs, or calls of them, that could not be read, why: nothing is
    raised into the compiler, which would take it for its own failure.
    """

    graphs: list[Lowered | None] = field(default_factory=list)
    calls: list[tuple[int, Symbols]] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)

    @property
    def cache_hits(self) -> int:
        """Graphs that came out of a warm cache, and so were never seen."""
        # The outer cache asks the inner one, so that one graph may count in both.
        return max(counters[group][name] for group, name in _HITS)

    def add(self, graph: GraphLowering, functions: Sequence[Function], arguments: Sequence[str]) -> int:
        """Read a graph whose code was generated; answers its index."""
        lowered = None
        try:
            lowered = _lowered(graph, tuple(functions), arguments)
        except Exception as error:  # noqa: BLE001  # see `unread`
            self.unread.append(f"graph {len(self.graphs)}: {error}")
        self.graphs.append(lowered)
        return len(self.graphs) - 1

    def called(self, number: int, arguments: Sequence[Any]) -> None:
        """Bind the symbols of a graph that is about to run."""
        lowered = self.graphs[number]
        if lowered is not None:
            self.calls.append((number, lowered.bind(arguments)))


@contextmanager
def watch(arguments: Sequence[str], *, run: bool = True) -> Iterator[Watched]:
    """Record every graph that is lowered and every call of those graphs, while open.

    `arguments` names those of the compiled function whose sizes are token counts.
    Without `run` nothing is compiled or loaded behind the generated code, and
    calling a graph raises `NotRun`, once its sizes were read.
    """
    watched, functions = Watched(), list[Function]()
    for group, name in _HITS:
        counters[group][name] = 0
    original = GraphLowering.compile_to_module

    def compile_to_module(graph: GraphLowering) -> SimpleNamespace:
        functions.clear()
        module = original(graph) if run else _generate(graph)
        number = watched.add(graph, functions, arguments)

        def call(given: list[Any]) -> object:
            watched.called(number, given)
            return module.call(given)

        return SimpleNamespace(call=call, runner=getattr(module, "runner", None), __file__=module.__file__)

    with ExitStack() as stack:
        stack.enter_context(patch.object(GraphLowering, "compile_to_module", compile_to_module))
        stack.enter_context(patch.object(TritonScheduling, "define_kernel", _recording(functions)))
        yield watched


@contextmanager
def cold(*, compile_threads: int = 1, run: bool = True) -> Iterator[None]:
    """Take nothing from a compile cache, keep nothing in it and pad no shape, while open.

    Whether padding pays is decided by timing, and so differently from run to run.
    Without `run` nothing is tuned on the device either, and the C++ compiler is not
    asked which vector instructions it knows.
    """
    # (`force_disable_caches` would do as much for the caches, and warn.)
    options: dict[str, Any] = {"compile_threads": compile_threads, "shape_padding": False}
    options |= dict.fromkeys(("fx_graph_cache", "fx_graph_remote_cache", "autotune_local_cache"), False)
    if not run:
        options |= {"cpp.vec_isa_ok": True, "triton.autotune_at_compile_time": False}
    # Without the graph cache torch leaves the one around it (AOTAutograd's) alone.
    with config.patch(options), dynamo_config.patch(automatic_dynamic_local_pgo=False):
        yield


def _generate(graph: GraphLowering) -> SimpleNamespace:
    graph.codegen_with_cpp_wrapper() if graph.cpp_wrapper else graph.codegen()

    def call(_: list[Any]) -> object:
        raise NotRun("the graph was generated and not compiled")

    return SimpleNamespace(call=call, __file__="<generated>")


def _lowered(graph: GraphLowering, functions: tuple[Function, ...], arguments: Sequence[str]) -> Lowered:
    names = list(graph.graph_inputs)
    tracing = TracingContext.try_get()
    static = tracing.fw_metadata.static_input_indices if tracing and tracing.fw_metadata else []
    sizes_of = {argument: list(_symbols_of(graph, argument)) for argument in arguments}
    return Lowered(
        kernels=scan(graph),
        functions=functions,
        inputs=dict(graph.graph_inputs),
        parameters=frozenset(names[index] for index in static) | frozenset(graph.constants),
        sizes_of=sizes_of,
        equal=frozenset(_equal_to(graph, frozenset(chain(*sizes_of.values())))),
    )


def _symbols_of(graph: GraphLowering, argument: str) -> Iterator[sympy.Symbol]:
    """Yield the symbols of the sizes of one argument: its own, or those that tracing found to be equal."""
    environment = graph.sizevars.shape_env
    for symbol, sources in environment.var_to_sources.items():
        if any(f"['{argument}']" in _source_name(source) for source in sources):
            yield from environment.replacements.get(symbol, symbol).free_symbols


def _equal_to(graph: GraphLowering, symbols: frozenset[sympy.Symbol]) -> Iterator[sympy.Symbol]:
    for symbol, replacement in graph.sizevars.shape_env.replacements.items():
        if replacement in symbols:
            yield symbol


def _source_name(source: Any) -> str:  # noqa: ANN401  # torch._guards.Source
    name = source.name  # a method before torch 2.12
    return str(name() if callable(name) else name)


def _bind_tensor(bound: dict[sympy.Symbol, int], value: ir.TensorBox, tensor: torch.Tensor) -> None:
    extents = chain(
        zip(value.get_size(), tensor.shape, strict=True),
        zip(value.get_stride(), tensor.stride(), strict=True),
    )
    for extent, found in extents:
        if isinstance(extent, sympy.Symbol):
            bound.setdefault(extent, int(found))


def _recording(functions: list[Function]) -> Callable[..., str]:
    original: Callable[..., str] = TritonScheduling.define_kernel

    def define_kernel(
        scheduling: TritonScheduling, source: str, schedule: Sequence[Any], kernel: object
    ) -> str:
        name = original(scheduling, source, schedule, kernel)
        named = source.replace(str(Placeholder.DESCRIPTIVE_NAME), name)
        named = named.replace(str(Placeholder.KERNEL_NAME), name)
        nodes = [node for node in schedule if isinstance(node, BaseSchedulerNode)]
        operations = frozenset(one.get_name() for node in nodes for one in node.get_nodes())
        functions.append(Function(name, named, operations, dict(getattr(kernel, "numels", {}))))
        return name

    return define_kernel
