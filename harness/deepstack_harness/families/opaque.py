"""Attention that the compiler cannot look into, as in engines: a custom op that counts the rows it is given.

Public torch API `torch.library.custom_op`.  Whatever a graph was compiled for,
the op sees the tensors of the call, so its count is what the graph really did.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from deepstack_harness.families.attention import sdpa

Run = Callable[[], Tensor]
Around = Callable[[Run], Tensor]

_collectors: list[list[int]] = []
_arounds: list[Around] = []


@torch.library.custom_op("deepstack_harness::attention", mutates_args=())
def attention(q_AND: Tensor, k_KSD: Tensor, v_KSD: Tensor, scale: float) -> Tensor:
    """`families.attention.sdpa`, contiguous; runs within the innermost `around_attention`."""

    def run() -> Tensor:
        if _collectors:
            _collectors[-1].append(q_AND.size(1))
        return sdpa(q_AND, k_KSD, v_KSD, scale).contiguous()

    return _arounds[-1](run) if _arounds else run()


@attention.register_fake
def _(q_AND: Tensor, *_: object) -> Tensor:
    return torch.empty_like(q_AND, memory_format=torch.contiguous_format)


def opaque(q_AND: Tensor, k_KSD: Tensor, v_KSD: Tensor, scale: float) -> Tensor:
    """Causal attention as one op of a graph; answers (A, N, D)."""
    out_AND: Tensor = attention(q_AND, k_KSD, v_KSD, scale)
    return out_AND


@contextmanager
def attended_rows() -> Iterator[list[int]]:
    """While open, collects how many token rows each call of the op was given, in order.

    Only the innermost open one collects.  Tracing and compiling call no kernel, so
    they leave nothing here; a hook that runs attention again counts again.
    """
    rows: list[int] = []
    _collectors.append(rows)
    try:
        yield rows
    finally:
        _collectors.pop()


@contextmanager
def around_attention(on_attention: Around) -> Iterator[None]:
    """While open, `on_attention(run)` stands for every call of the op; the innermost one is asked.

    `run()` does the attention on the tensors of that very call, and may be called
    again later, as the replay of a graph that was broken here does.  What
    `on_attention` answers goes on into the graph: (A, N, D), contiguous, no view of
    an input.
    """
    _arounds.append(on_attention)
    try:
        yield
    finally:
        _arounds.pop()
