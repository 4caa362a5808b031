"""Compiling pieces of a graph apart from each other, from caches that know nothing; read in torch 2.13.

Dynamo and Inductor are imported where they are used: the worker of a source, which compiles nothing where
no helper stands for an op, would take 1.4 s longer to start.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from torch import Tensor, fx


def compile_piece(piece: fx.GraphModule, inputs: Sequence[Tensor], backend: str) -> Callable[..., Any]:
    """Compile a piece of a graph that Dynamo has traced, with a backend (`aot_eager`, `inductor`).

    `inputs` are examples: the compiled code is for their shapes and dtypes.
    `torch.compile` of a piece does nothing inside a graph that is compiled already.
    """
    from torch._dynamo.backends.registry import lookup_backend

    (output,) = piece.graph.find_nodes(op="output")
    alone = not isinstance(output.args[0], tuple)
    if alone:  # AOTAutograd wants a tuple
        output.args = ((output.args[0],),)
        piece.recompile()
    compiled: Callable[..., Any] = lookup_backend(backend)(piece, list(inputs))
    return (lambda *args: compiled(*args)[0]) if alone else compiled


def pieces_compiled() -> int:
    """Count the graphs that went through AOTAutograd since the counters were set to zero.

    Dynamo's own do not count.
    """
    from torch._dynamo.utils import counters

    return int(counters["aot_autograd"]["total"])


def cold_caches() -> AbstractContextManager[None]:
    """Start with empty caches of Inductor on disk and in memory, while open, and bring the others back."""
    from torch._inductor.utils import fresh_cache

    opened: AbstractContextManager[None] = fresh_cache()
    return opened
