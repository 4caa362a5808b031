"""Read the graphs that Inductor lowers: their kernels, and every call with its sizes.

`watch` wraps `GraphLowering.compile_to_module`, where code is generated for both backends. `scan` then reads
the scheduler, whose nodes are the same objects for the C++ and the Triton backend, so that no size comes from
generated text. It is called after codegen, which is where the scheduler learns which buffers vanish inside
fused kernels.

Sizes are sympy expressions. The value of a symbol is read from the arguments of each call, in the order in
which the generated wrapper reads them (`PythonWrapperCodegen.codegen_inputs`): plain symbols first, then
sizes and strides of tensors. Values at compile time (hints) are never used: a graph traced at one length may
be called with another, and its text does not change by that.

Read in torch 2.10 .. 2.15, run on 2.11, 2.13 and 2.15. `SPELLINGS` has the private names that not every
supported torch has; `cases/selftest/compile/torch_compat/test_names.py` looks for all of `torch_compat`'s.
"""

import ast
import importlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal
from unittest.mock import patch

import sympy
import torch
from torch._dynamo import config as dynamo_config
from torch._dynamo.utils import counters
from torch._guards import TracingContext
from torch._inductor import config, ir
from torch._inductor.codegen.triton import TritonScheduling
from torch._inductor.dependencies import Dep, MemoryDep, StarDep, WeakDep
from torch._inductor.graph import GraphLowering
from torch._inductor.output_code import CompiledFxGraph
from torch._inductor.scheduler import (
    BaseSchedulerNode,
    ExternKernelSchedulerNode,
    NopKernelSchedulerNode,
    SchedulerNode,
)
from torch._inductor.utils import Placeholder, get_fused_kernel_name

from deepstack_harness.errors import MachineError, NotMeasured
from deepstack_harness.text import parse_python

SPELLINGS: Mapping[str, tuple[str, ...]] = {
    # `torch.cond` in Inductor's IR: a Switch with two branches from torch 2.14 on, a Conditional before.
    "torch._inductor.ir:Switch": ("Switch", "Conditional"),
    # The value of a size at compile time: optimization_hint from torch 2.11 on, size_hint on 2.10.
    "torch._inductor.sizevars:SizeVarAllocator.optimization_hint": (
        "SizeVarAllocator.optimization_hint",
        "SizeVarAllocator.size_hint",
    ),
}
"""All spellings of a name in its module, the newest first."""


def look_up(name: str) -> Any:  # noqa: ANN401  # a class or a function of torch
    """Return the class or function that `MODULE:NAME`, a key of `SPELLINGS`, is in this torch.

    Raises `MachineError` where this torch has none of the spellings.
    """
    module_name = name.partition(":")[0]
    module = importlib.import_module(module_name)
    for spelling in SPELLINGS[name]:
        try:
            return attrgetter(spelling)(module)
        except AttributeError:
            continue
    raise MachineError(
        f"torch {torch.__version__} has none of {', '.join(SPELLINGS[name])} in {module_name}: "
        "use another torch, or add its spelling to deepstack_harness/compile/torch_compat/inductor.py"
    )


Size = tuple[sympy.Expr, ...]
Kind = Literal["generated", "template", "extern"]

_SUBGRAPHS = (look_up("torch._inductor.ir:Switch"), ir.WhileLoop, ir.InvokeSubgraph)
_HINT = look_up("torch._inductor.sizevars:SizeVarAllocator.optimization_hint")


@dataclass(frozen=True)
class Access:
    """One buffer that a kernel reads or writes: how many elements of it, and how large it is.

    `itemsize` in bytes. A kernel that reads a buffer under several indices has one
    access, with the sum of their elements, which may be more than the buffer has.
    An extern kernel that is given a slice has the size of the slice.
    """

    buffer: str
    itemsize: int
    elements: sympy.Expr
    size: Size


@dataclass(frozen=True)
class ScannedKernel:
    """One scheduler node: a generated loop nest, a template, or a call of somebody else's code.

    `operations` are the scheduler's names of what was fused. `points` multiplies the
    ranges of its largest loop, `reduction` those that are reduced (1 and 1 for an
    extern kernel, into which nothing can be seen).
    """

    name: str
    kind: Kind
    operations: tuple[str, ...]
    points: sympy.Expr
    reduction: sympy.Expr
    accesses: tuple[Access, ...]


def scan(graph: GraphLowering) -> tuple[ScannedKernel, ...]:
    """Return the kernels of a graph whose code was generated, in the order they run.

    Raises `NotMeasured` for a graph that calls other graphs: their kernels are not in its scheduler.
    """
    nodes = graph.scheduler.nodes
    calling = [node.get_name() for node in nodes if isinstance(node.node, _SUBGRAPHS)]
    if calling:
        raise NotMeasured(f"{', '.join(calling)} calls another graph, whose kernels would not be counted")
    return tuple(
        _scanned(graph, node)
        for node in nodes
        # A MultiOutput only names one of the tensors that the call before it gave.
        if not (isinstance(node, NopKernelSchedulerNode) or isinstance(node.node, ir.MultiOutput))
    )


def _scanned(graph: GraphLowering, node: BaseSchedulerNode) -> ScannedKernel:
    if isinstance(node, ExternKernelSchedulerNode):
        return _extern(graph, node)
    largest = max(_loops(node), key=lambda loop: int(_HINT(graph.sizevars, _points(loop))))
    return ScannedKernel(
        name=get_fused_kernel_name(_loops(node), "original_aten"),
        kind="template" if node.is_template() else "generated",
        operations=tuple(loop.get_name() for loop in _loops(node)),
        points=_plain(graph, _points(largest)),
        reduction=_plain(graph, sympy.Mul(*largest.get_ranges()[1])),
        accesses=tuple(_accesses(graph, node)),
    )


def _extern(graph: GraphLowering, node: ExternKernelSchedulerNode) -> ScannedKernel:
    kernel = node.node
    assert isinstance(kernel, ir.ExternKernel)
    # An op with several results has them in `outputs`, its own being no tensor.
    results = getattr(kernel, "outputs", None) or kernel.get_outputs()
    accesses = []
    for tensor in (*kernel.inputs, *results):
        if isinstance(tensor, ir.IRNode) and tensor.has_tensor_output():
            size = _size(graph, tensor)
            count = _plain(graph, sympy.Mul(*size))
            accesses.append(Access(tensor.get_name(), tensor.get_dtype().itemsize, count, size))
    return ScannedKernel(
        name=str(getattr(kernel, "op_overload", None) or kernel.get_kernel_name() or type(kernel).__name__),
        kind="extern",
        operations=(node.get_name(),),
        points=sympy.S.One,
        reduction=sympy.S.One,
        accesses=tuple(accesses),
    )


def _loops(node: BaseSchedulerNode) -> list[SchedulerNode]:
    return [loop for loop in node.get_nodes() if isinstance(loop, SchedulerNode)]


def _points(loop: SchedulerNode) -> sympy.Expr:
    iterated, reduced = loop.get_ranges()
    return sympy.Mul(*iterated, *reduced)


def _accesses(graph: GraphLowering, node: BaseSchedulerNode) -> Iterator[Access]:
    """Yield each outside buffer once for reading and once for writing.

    (`get_read_write_buffers_sizes` would charge a fused node the whole buffer for a slice of it.)
    """
    gone = graph.removed_buffers | graph.inplaced_to_remove
    # Reads of what the kernel itself wrote are not among a fused node's.
    for dependencies in (node.read_writes.reads, node.read_writes.writes):
        by_buffer: dict[str, list[Dep]] = {}
        for dep in dependencies:
            if not isinstance(dep, WeakDep) and dep.name not in gone:
                by_buffer.setdefault(dep.name, []).append(dep)
        yield from (_access(graph, name, dependencies) for name, dependencies in sorted(by_buffer.items()))


def _access(graph: GraphLowering, name: str, dependencies: Sequence[Dep]) -> Access:
    if name in graph.constants:
        size: Size = tuple(map(sympy.Integer, graph.constants[name].shape))
    else:
        size = _size(graph, graph.get_buffer(name))
    elements = sympy.Add(*(_touched(dep, sympy.Mul(*size)) for dep in dependencies))
    return Access(name, graph.get_dtype(name).itemsize, _plain(graph, elements), size)


def _touched(dep: Dep, whole: sympy.Expr) -> sympy.Expr:
    if isinstance(dep, MemoryDep) and dep.is_indirect():
        # Which elements a gather reads is not known, but it reads no more than it has iterations.
        return sympy.Min(whole, sympy.Mul(*dep.size))
    return whole if isinstance(dep, StarDep) else dep.get_numel()


def _size(graph: GraphLowering, node: ir.IRNode) -> Size:
    return tuple(_plain(graph, extent) for extent in node.get_size())


def _plain(graph: GraphLowering, expression: sympy.Expr | int) -> sympy.Expr:
    """Remove the names that Inductor gives to sizes it computes beforehand."""
    replaced = sympy.sympify(expression).xreplace(graph.sizevars.inv_precomputed_replacements)
    expanded: sympy.Expr = sympy.expand(replaced)
    return expanded


Symbols = Mapping[sympy.Symbol, int]

_HITS = (("inductor", "fxgraph_cache_hit"), ("aot_autograd", "autograd_cache_hit"))


def cache_hits() -> int:
    """Count the graphs that came out of a warm cache since the counters were set to zero."""
    # The outer cache looks into the inner one, so that one graph may count in both.
    return max(counters[group][name] for group, name in _HITS)


@contextmanager
def generated_code() -> Iterator[list[str]]:
    """Gather the Python text that Inductor generates for each graph, while open; gives the list.

    A graph out of the cache counts too: `CompiledFxGraph.post_compile` is where torch 2.10 .. 2.15 make every
    graph ready to be called, whichever way it came.
    """
    texts: list[str] = []
    original = CompiledFxGraph.post_compile

    def post_compile(graph: CompiledFxGraph, *args: Any, **kwargs: Any) -> None:
        # A graph that is generated only (`kernels`) has no file, and torch then sets no such attribute.
        if hasattr(graph, "source_code"):
            texts.append(graph.source_code)
        original(graph, *args, **kwargs)

    with patch.object(CompiledFxGraph, "post_compile", post_compile):
        yield texts


_LIBRARIES = ("extern_kernels.", "torch.ops.")
_NUMBER = re.compile(r"_\d+$")


def kernels_in(code: str) -> Iterator[str]:
    """Yield the kernels and library calls of generated Python code, in the order in which they are called.

    A generated kernel is a name that `async_compile` gave; the number at its end, which distinguishes kernels
    of one file, is left out.
    """
    generated: set[str] = set()
    for node in ast.walk(parse_python(code)):
        match node:
            case ast.Assign(
                targets=[ast.Name(name)], value=ast.Call(ast.Attribute(ast.Name("async_compile")))
            ):
                generated.add(name)
            case ast.FunctionDef(name="call", body=body):
                # In the order of the lines; `ast.walk` goes level by level.
                walked = (inner for statement in body for inner in ast.walk(statement))
                calls = (inner for inner in walked if isinstance(inner, ast.Call))
                for call in sorted(calls, key=lambda call: (call.lineno, call.col_offset)):
                    function = ast.unparse(call.func).removesuffix(".run")
                    if function in generated:
                        yield _NUMBER.sub("", function)
                    elif function.startswith(_LIBRARIES):
                        yield function


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

    `parameters` are inputs that keep their address between calls (weights). `sizes_of` has the symbols that
    the sizes of each argument watched for became, and `equal` those that tracing found to be equal to one of
    them: both may occur in sizes. `code` is the text that Inductor generated: Python, or C++, with the source
    of every kernel.
    """

    kernels: tuple[ScannedKernel, ...]
    functions: tuple[Function, ...]
    inputs: Mapping[str, sympy.Expr | ir.TensorBox]
    parameters: frozenset[str]
    sizes_of: Mapping[str, Sequence[sympy.Symbol]]
    equal: frozenset[sympy.Symbol] = frozenset()
    code: str = ""

    @property
    def token_symbols(self) -> frozenset[sympy.Symbol]:
        """The symbols of all arguments watched for."""
        return frozenset(chain(*self.sizes_of.values())) | self.equal

    def bind(self, arguments: Sequence[Any]) -> Symbols:
        """Return the value of each symbol in a call with these arguments, as the generated wrapper has it."""
        bound: dict[sympy.Symbol, int] = {}
        inputs = list(zip(self.inputs.values(), arguments, strict=True))
        for value, argument in inputs:
            if isinstance(value, sympy.Symbol):
                bound.setdefault(value, int(argument))
        for value, argument in inputs:
            if not isinstance(value, ir.TensorBox):
                continue
            sizes = zip(value.get_size(), argument.shape, strict=True)
            strides = zip(value.get_stride(), argument.stride(), strict=True)
            for extent, size in chain(sizes, strides):
                if isinstance(extent, sympy.Symbol):
                    bound.setdefault(extent, int(size))
        return bound


@dataclass
class Watched:
    """Record of `watch`; a call is its graph's index, and the values of its symbols.

    `unread` has the reason for each graph, or call of one, that could not be read: nothing is raised into the
    compiler, which would take it for its own failure.
    """

    graphs: list[Lowered | None] = field(default_factory=list)
    calls: list[tuple[int, Symbols]] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)

    def add(
        self, graph: GraphLowering, functions: Sequence[Function], arguments: Sequence[str], code: str
    ) -> int:
        """Read a graph whose code was generated; return its index."""
        lowered = None
        try:
            lowered = replace(_lowered(graph, tuple(functions), arguments), code=code)
        except Exception as error:  # noqa: BLE001  # see `unread`
            self.unread.append(f"graph {len(self.graphs)}: {error}")
        self.graphs.append(lowered)
        return len(self.graphs) - 1


@contextmanager
def watch(arguments: Sequence[str], *, run: bool = True) -> Iterator[Watched]:
    """Record every graph that is lowered and every call of those graphs, while open.

    `arguments` names those of the compiled function whose sizes are token counts. Without `run` nothing is
    compiled or loaded once code was generated, and calling a graph raises `NotRun`, once its sizes were read.
    """
    watched, functions = Watched(), list[Function]()
    for group, name in _HITS:
        counters[group][name] = 0
    original = GraphLowering.compile_to_module

    def compile_to_module(graph: GraphLowering) -> SimpleNamespace:
        functions.clear()
        module: Any = None
        if run:
            module = original(graph)
            code = Path(module.__file__).read_text("utf-8")
        else:
            wrapper, *_ = graph.codegen_with_cpp_wrapper() if graph.cpp_wrapper else graph.codegen()
            code = wrapper.value
        number = watched.add(graph, functions, arguments, code)

        def call(inputs: list[Any]) -> object:
            lowered = watched.graphs[number]
            if lowered is not None:
                watched.calls.append((number, lowered.bind(inputs)))
            if module is None:
                raise NotRun("the graph was generated and not compiled")
            return module.call(inputs)

        file = getattr(module, "__file__", "<generated>")
        return SimpleNamespace(call=call, runner=getattr(module, "runner", None), __file__=file)

    define: Callable[..., str] = TritonScheduling.define_kernel

    def define_kernel(
        scheduling: TritonScheduling, source: str, schedule: Sequence[Any], kernel: object
    ) -> str:
        name = define(scheduling, source, schedule, kernel)
        named = source.replace(str(Placeholder.DESCRIPTIVE_NAME), name)
        named = named.replace(str(Placeholder.KERNEL_NAME), name)
        nodes = [node for node in schedule if isinstance(node, BaseSchedulerNode)]
        operations = frozenset(inner.get_name() for node in nodes for inner in node.get_nodes())
        functions.append(Function(name, named, operations, dict(getattr(kernel, "numels", {}))))
        return name

    with ExitStack() as stack:
        stack.enter_context(patch.object(GraphLowering, "compile_to_module", compile_to_module))
        stack.enter_context(patch.object(TritonScheduling, "define_kernel", define_kernel))
        yield watched


@contextmanager
def cold(*, compile_threads: int = 1, run: bool = True) -> Iterator[None]:
    """Read nothing from a compile cache, write nothing to it and pad no shape, while open.

    Whether padding pays is decided by timing, and so differently from run to run. Without `run` nothing is
    tuned on the device either, and the C++ compiler is not called to find out which vector instructions it
    knows.
    """
    # (`force_disable_caches` would do as much for the caches, and warn.)
    options: dict[str, Any] = {"compile_threads": compile_threads, "shape_padding": False}
    options |= dict.fromkeys(("fx_graph_cache", "fx_graph_remote_cache", "autotune_local_cache"), False)
    if not run:
        options |= {"cpp.vec_isa_ok": True, "triton.autotune_at_compile_time": False}
    # Without the graph cache torch does not use the one around it (AOTAutograd's) either.
    with config.patch(options), dynamo_config.patch(automatic_dynamic_local_pgo=False):
        yield


def _lowered(graph: GraphLowering, functions: tuple[Function, ...], arguments: Sequence[str]) -> Lowered:
    names = list(graph.graph_inputs)
    tracing = TracingContext.try_get()
    static = tracing.fw_metadata.static_input_indices if tracing and tracing.fw_metadata else []
    environment, sizes_of = graph.sizevars.shape_env, {}
    for argument in arguments:
        # Symbols of its own sizes, or those that tracing found to be equal.
        own = [
            symbol
            for symbol, sources in environment.var_to_sources.items()
            for name in [source.name for source in sources]  # a method before torch 2.12
            if f"['{argument}']" in str(name() if callable(name) else name)
        ]
        equal = (environment.replacements.get(symbol, symbol) for symbol in dict.fromkeys(own))
        sizes_of[argument] = [symbol for expression in equal for symbol in expression.free_symbols]
    sizes = frozenset(chain(*sizes_of.values()))
    return Lowered(
        kernels=scan(graph),
        functions=functions,
        inputs=dict(graph.graph_inputs),
        parameters=frozenset(names[index] for index in static) | frozenset(graph.constants),
        sizes_of=sizes_of,
        equal=frozenset(
            symbol for symbol, replacement in environment.replacements.items() if replacement in sizes
        ),
    )
