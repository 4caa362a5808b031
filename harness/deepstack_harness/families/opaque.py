"""Attention in a custom op, which the compiler cannot look into, as in engines; the op counts its rows.

The op (`torch.library.custom_op`) sees the tensors of each call, whatever sizes the graph was compiled
for, so that its count is the number of rows that the graph really processed.
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
    """Run `sdpa` inside the innermost `around_attention`: (A, N, D), (K, S, D), (K, S, D) -> (A, N, D).

    The answer is contiguous.
    """

    def run() -> Tensor:
        if _collectors:
            _collectors[-1].append(q_AND.size(1))
        return sdpa(q_AND, k_KSD, v_KSD, scale).contiguous()

    return _arounds[-1](run) if _arounds else run()


@attention.register_fake
def _(q_AND: Tensor, *_: object) -> Tensor:
    return torch.empty_like(q_AND, memory_format=torch.contiguous_format)


def opaque(q_AND: Tensor, k_KSD: Tensor, v_KSD: Tensor, scale: float) -> Tensor:
    """Attend causally in one op of a graph: (A, N, D), (K, S, D), (K, S, D) -> (A, N, D)."""
    out_AND: Tensor = attention(q_AND, k_KSD, v_KSD, scale)
    return out_AND


@contextmanager
def attended_rows() -> Iterator[list[int]]:
    """Collect how many token rows each call of the op is given, in order, until it is closed.

    Only the innermost open collector collects.  Tracing and compiling call no kernel and add nothing;
    a hook that runs attention again adds again.
    """
    rows: list[int] = []
    _collectors.append(rows)
    try:
        yield rows
    finally:
        _collectors.pop()


@contextmanager
def around_attention(on_attention: Around) -> Iterator[None]:
    """Call `on_attention(run)` in place of every call of the op, until it is closed.

    `run()` does the attention on the tensors of that call.  It may be called again later, as the
    replay of a graph that was broken at the op does.  The answer of `on_attention` goes on into the
    graph: (A, N, D), contiguous, and not a view of an input.  The innermost open hook is called.
    """
    _arounds.append(on_attention)
    try:
        yield
    finally:
        _arounds.pop()
