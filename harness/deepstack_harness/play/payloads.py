"""Payloads as engines make them: the values of their rows, and how the caller's tensor lies in memory."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import cast

import numpy as np
import torch
from torch import Tensor

from deepstack_harness.contract.trace import Step
from deepstack_harness.devices import parse_dtype


@dataclass(frozen=True)
class CallersTensor:
    """The tensor (levels, N, hidden) that `set` is given, and the memory that it lies in."""

    payload: Tensor
    memory: Tensor

    def reuse(self, value: float) -> None:
        """Fill all of the memory with one value, as a caller does that uses it for the next step at once."""
        with torch.no_grad():
            self.memory.fill_(value)


def values_of(step: Step, drawn: Tensor) -> Tensor:
    """Return the payload (levels, N, hidden) that a set is about, contiguous, in the dtype of the caller.

    `drawn` has normal random numbers in the dtype of the buffer.
    """
    dtype = drawn.dtype if step.dtype is None else parse_dtype(step.dtype)
    made = _VALUES[step.values](drawn, dtype) if step.values else drawn.to(dtype)
    if step.layout == "expanded" and step.tokens:
        made = made[:, :1].expand_as(made).contiguous()
    return made if step.spans is None else _only(made, step.spans)


def laid_out(step: Step, payload: Tensor, last: CallersTensor | None = None) -> CallersTensor:
    """Return a copy of a payload (levels, N, hidden) that lies in memory as the step says.

    It lies in the memory of the `last` one where that fits, as with engines that keep theirs: an address
    says nothing about the content.
    """
    levels, tokens, hidden = payload.shape
    memory_of = partial(_memory, payload, last)
    match step.layout:
        case "permuted":  # vLLM: (N, levels, hidden).permute(1, 0, 2)
            memory = memory_of(tokens, levels, hidden)
            view = memory.permute(1, 0, 2)
        case "strided":
            memory = memory_of(levels, 2 * tokens, hidden)
            view = memory[:, ::2]
        case "slice":
            memory = memory_of(levels, tokens + 5, hidden)
            view = memory[:, 3 : 3 + tokens]
        case "channels":
            memory = memory_of(levels, tokens, 2 * hidden + 1)
            view = memory[:, :, 1 : 1 + hidden]
        case "expanded" if tokens and step.spans is None:
            memory = memory_of(levels, 1, hidden).copy_(payload[:, :1])
            view = memory.expand(levels, tokens, hidden)
        case _:
            memory = view = memory_of(levels, tokens, hidden)
    if 0 not in view.stride():  # an expanded tensor holds its row already
        view.copy_(payload)
    return CallersTensor(view.detach().requires_grad_() if step.grad else view, memory)


def _memory(payload: Tensor, last: CallersTensor | None, *shape: int) -> Tensor:
    """Return zeros of a shape, in the memory of the last tensor if that has this shape and dtype."""
    made = payload.new_zeros(shape)
    if last is None or (last.memory.shape, last.memory.dtype) != (made.shape, made.dtype):
        return made
    return last.memory.zero_()  # gaps between rows do not look like an earlier payload


def count_of(step: Step) -> int:
    """Return the count of a call as the step asks for it: a Python int, or an integer that is none."""
    given = _COUNTS[step.count](step.tokens) if step.count else step.tokens
    return cast(int, given)


def same_bytes(one: Tensor, other: Tensor) -> bool:
    """Say whether two tensors of one shape and dtype hold the same bytes, NaN and -0.0 told apart."""
    flat = (tensor.detach().contiguous().flatten().view(torch.uint8) for tensor in (one, other))
    return torch.equal(*flat)


def _only(payload: Tensor, spans: Sequence[tuple[int, int]]) -> Tensor:
    """Return the payload (levels, N, h) with rows outside the spans zeroed."""
    kept = torch.zeros_like(payload)
    for start, end in spans:
        kept[:, start:end] = payload[:, start:end]
    return kept


def _sprinkled(drawn: Tensor, value: float, dtype: torch.dtype) -> Tensor:
    """Put `value` into every third element; each row keeps numbers of its own."""
    made = drawn.to(dtype).clone()
    made[..., ::3] = value
    return made


def _inf(drawn: Tensor, dtype: torch.dtype) -> Tensor:
    made = _sprinkled(drawn, torch.inf, dtype)
    made[:, 1::2, ::3] = -torch.inf
    return made


def _nan(drawn: Tensor, dtype: torch.dtype) -> Tensor:
    return _sprinkled(drawn, torch.nan, dtype)


def _huge(drawn: Tensor, dtype: torch.dtype) -> Tensor:
    """Use the upper end of the caller's dtype, which another dtype may turn into infinity."""
    return (drawn.double().tanh() * torch.finfo(dtype).max).to(dtype)


def _subnormal(drawn: Tensor, dtype: torch.dtype) -> Tensor:
    return (drawn.double().tanh() * torch.finfo(dtype).tiny).to(dtype)


def _negzero(drawn: Tensor, dtype: torch.dtype) -> Tensor:
    made = _sprinkled(drawn, -0.0, dtype)
    made[:, ::2] = -0.0
    return made


def _constant(drawn: Tensor, dtype: torch.dtype) -> Tensor:
    return drawn[:, :1].expand_as(drawn).to(dtype).contiguous()


def _zeros(drawn: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.zeros_like(drawn, dtype=dtype)


def _mixed(drawn: Tensor, dtype: torch.dtype) -> Tensor:
    """Mix all kinds row by row; every fourth row is as the first one."""
    made = drawn.to(dtype).clone()
    for start, make in enumerate((_inf, _nan, _huge, _subnormal, _negzero)):
        made[:, start::7] = make(drawn, dtype)[:, start::7]
    made[:, 3::4] = made[:, :1]
    return made


_COUNTS: Mapping[str, Callable[[int], object]] = {"numpy": np.int64, "torch": torch.tensor, "bool": bool}

_VALUES: Mapping[str, Callable[[Tensor, torch.dtype], Tensor]] = {
    "inf": _inf, "nan": _nan, "huge": _huge, "subnormal": _subnormal, "negzero": _negzero,
    "constant": _constant, "zeros": _zeros, "mixed": _mixed,
}  # fmt: skip
