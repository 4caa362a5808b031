"""Read Inductor's scheduler: one entry for each kernel of a lowered graph.

The scheduler's nodes are the same objects for the C++ and the Triton backend, so
sizes are read here and never from generated text.  Sizes are sympy expressions:
what a symbol stands for is decided at each call (`deepstack_harness.torch_compat.lowering`).
Read in torch 2.10 .. 2.15, run on 2.11, 2.13 and 2.15.  `scan` is called behind codegen,
which is where the scheduler learns which buffers vanish inside fused kernels.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import sympy
from torch._inductor import ir
from torch._inductor.dependencies import Dep, MemoryDep, StarDep, WeakDep
from torch._inductor.graph import GraphLowering
from torch._inductor.scheduler import (
    BaseSchedulerNode,
    ExternKernelSchedulerNode,
    NopKernelSchedulerNode,
    SchedulerNode,
)
from torch._inductor.utils import get_fused_kernel_name

from deepstack_harness.errors import NotMeasured
from deepstack_harness.torch_compat.moved import look_up

Size = tuple[sympy.Expr, ...]
Kind = Literal["generated", "template", "extern"]

_SUBGRAPHS = (look_up("torch._inductor.ir:Switch"), ir.WhileLoop, ir.InvokeSubgraph)
_HINT = look_up("torch._inductor.sizevars:SizeVarAllocator.optimization_hint")


@dataclass(frozen=True)
class Access:
    """One buffer that a kernel reads or writes: how many elements of it, and how large it is.

    `itemsize` in bytes.  A kernel that reads a buffer under several indices has one
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

    `operations` are the scheduler's names of what was fused.  `points` multiplies the
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
    return tuple(_scanned(graph, node) for node in nodes if not _does_nothing(node))


def _does_nothing(node: BaseSchedulerNode) -> bool:
    # A MultiOutput only names one of the tensors that the call before it gave.
    return isinstance(node, NopKernelSchedulerNode) or isinstance(node.node, ir.MultiOutput)


def _scanned(graph: GraphLowering, node: BaseSchedulerNode) -> ScannedKernel:
    if isinstance(node, ExternKernelSchedulerNode):
        return _extern(graph, node)
    largest = max(_loops(node), key=lambda loop: _hint(graph, _points(loop)))
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
    return ScannedKernel(
        name=str(getattr(kernel, "op_overload", None) or kernel.get_kernel_name() or type(kernel).__name__),
        kind="extern",
        operations=(node.get_name(),),
        points=sympy.S.One,
        reduction=sympy.S.One,
        accesses=tuple(_whole(graph, one) for one in (*kernel.inputs, *results) if _is_tensor(one)),
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
        yield from (_access(graph, name, found) for name, found in sorted(by_buffer.items()))


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


def _whole(graph: GraphLowering, node: ir.IRNode) -> Access:
    size = _size(graph, node)
    return Access(node.get_name(), node.get_dtype().itemsize, _plain(graph, sympy.Mul(*size)), size)


def _is_tensor(node: object) -> bool:
    return isinstance(node, ir.IRNode) and node.has_tensor_output()


def _size(graph: GraphLowering, node: ir.IRNode) -> Size:
    return tuple(_plain(graph, extent) for extent in node.get_size())


def _plain(graph: GraphLowering, expression: sympy.Expr | int) -> sympy.Expr:
    """Remove the names that Inductor gives to sizes it computes beforehand."""
    replaced = sympy.sympify(expression).xreplace(graph.sizevars.inv_precomputed_replacements)
    expanded: sympy.Expr = sympy.expand(replaced)
    return expanded


def _hint(graph: GraphLowering, expression: sympy.Expr) -> int:
    """Return the value at compile time; used to compare loops of one kernel only."""
    return int(_HINT(graph.sizevars, expression))
