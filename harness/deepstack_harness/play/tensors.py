"""Tensors of a case's steps: payloads and inputs drawn from its seed, and the owner of each row.

A payload has the values that its step states, and the caller's tensor lies in memory as those of engines do:
with gaps, permuted, expanded, and overwritten as soon as `set` has returned.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import cast

import numpy as np
import torch
from torch import Tensor

from deepstack_harness.contract.case import Case
from deepstack_harness.contract.observation import RowRange, Rows
from deepstack_harness.contract.protocols import Inputs
from deepstack_harness.contract.trace import Step
from deepstack_harness.models.family import parse_buffer_dtype
from deepstack_harness.play.attempt import Attempt
from deepstack_harness.play.model import Model
from deepstack_harness.play.rows import RowOwners, bytes_of


@dataclass(frozen=True)
class CallersTensor:
    """The tensor (levels, N, hidden) that `set` is given, and the memory that it lies in."""

    payload: Tensor
    memory: Tensor


def values_of(step: Step, drawn: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Return the payload (levels, N, hidden) that a set is about, contiguous, in the dtype of the caller.

    `drawn` has normal random numbers, and `dtype` is that of the buffer, by default theirs.
    """
    dtype = dtype or drawn.dtype
    dtype = dtype if step.dtype is None else parse_buffer_dtype(step.dtype)
    if not dtype.is_floating_point:
        made = _integers(step, drawn, dtype)
    else:
        made = _special_values(step.values, drawn, dtype) if step.values else drawn.to(dtype)
    if step.layout == "one_level" and len(made):
        made = made[:1].expand_as(made).contiguous()
    if step.layout == "expanded" and step.tokens:
        made = made[:, :1].expand_as(made).contiguous()
    if step.spans is None:
        return made
    inside = torch.zeros_like(made)
    for start, end in step.spans:
        inside[:, start:end] = made[:, start:end]
    return inside


_SPREAD = {torch.int64: 1e12, torch.int32: 1e8, torch.int16: 4e3}
"""What integers of a buffer are multiplied by: a row in fewer bits, or through float32, is another one."""


def _integers(step: Step, drawn: Tensor, dtype: torch.dtype) -> Tensor:
    """Return integers for normal random numbers, few of them equal and none 0."""
    if step.dtype is not None:  # for a buffer of floats, which holds them after a cast
        return (drawn.double() * 1000).round().to(dtype)
    if step.values == "zeros":
        return torch.zeros_like(drawn, dtype=dtype)
    source = drawn[:, :1].expand_as(drawn) if step.values == "constant" else drawn
    info, spread = torch.iinfo(dtype), _SPREAD.get(dtype, 2.0**6)
    numbers = (source.double() * spread).round().long()
    numbers = torch.where(numbers == 0, 1, numbers)
    return (numbers.abs() % info.max + 1 if info.min == 0 else numbers.clamp(info.min, info.max)).to(dtype)


def laid_out(step: Step, payload: Tensor, last: CallersTensor | None = None) -> CallersTensor:
    """Return a copy of a payload (levels, N, hidden) in the memory layout of the step.

    It lies in the memory of the `last` one where that fits, because engines reuse theirs: a buffer that
    recognises a payload by its address is found by that.
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
        case "transposed":
            memory = memory_of(levels, hidden, tokens)
            view = memory.transpose(1, 2)
        case "sparse":
            memory = memory_of(levels, tokens, 2 * hidden)
            view = memory[:, :, ::2]
        case "one_level" if levels:
            memory = memory_of(1, tokens, hidden).copy_(payload[:1])
            view = memory.expand(levels, tokens, hidden)
        case _:
            memory = view = memory_of(levels, tokens, hidden)
    if 0 not in view.stride():  # an expanded tensor holds its row already
        view.copy_(payload)
    view = reshaped(step, view)
    return CallersTensor(view.detach().requires_grad_() if step.grad else view, memory)


def reshaped(step: Step, payload: Tensor) -> Tensor:
    """Return a payload (levels, N, hidden) with its elements in the shape that the step states."""
    match step.shape:
        case "flat":
            return payload.flatten(0, 1)
        case "joined":
            return payload.transpose(0, 1).flatten(1, 2)
        case "swapped":
            turned = payload.transpose(0, 1)
        case "transposed":
            turned = payload.transpose(1, 2)
        case "batched":
            return payload[None]
        case _:
            return payload
    return payload if turned.shape == payload.shape else turned  # of equal sizes it is right as it is


def _properties_of(payload: Tensor) -> dict[str, object]:
    """Return what else than its bytes a caller sees of a tensor."""
    return {
        "shape": payload.shape,
        "strides": payload.stride(),
        "requires_grad": payload.requires_grad,
        "version": None if payload.is_inference() else payload._version,  # noqa: SLF001  # no public name
    }


def _memory(payload: Tensor, last: CallersTensor | None, *shape: int) -> Tensor:
    """Return zeros of a shape, in the memory of the last tensor if that has this shape and dtype."""
    made = payload.new_zeros(shape)
    if last is None or (last.memory.shape, last.memory.dtype) != (made.shape, made.dtype):
        return made
    return last.memory.zero_()  # gaps between rows do not look like an earlier payload


def count_of(step: Step) -> int:
    """Return the count of a call in the type of the step: a Python int, or another kind of integer."""
    given = _COUNTS[step.count](step.tokens) if step.count else step.tokens
    return cast(int, given)


def same_bytes(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors of one shape and dtype have the same bytes; -0.0 differs from 0."""
    return torch.equal(*(bytes_of(tensor).flatten() for tensor in (one, other)))


def _special_values(kind: str, drawn: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a payload (levels, N, hidden) with values of one kind, such as `Step.values` names.

    "inf", "nan" and "negzero" are in every third element; the others stay drawn, so that each row is unique.
    """
    made = drawn.to(dtype, copy=True)
    match kind:
        case "inf":
            made[..., ::3] = torch.inf
            made[:, 1::2, ::3] = -torch.inf
        case "nan":
            made[..., ::3] = torch.nan
        case "nans":
            made.fill_(torch.nan)
        case "negzero":
            made[..., ::3] = -0.0
            made[:, ::2] = -0.0
        case "huge":  # the upper end of the caller's dtype, which becomes infinity in a narrower one
            return (drawn.double().tanh() * torch.finfo(dtype).max).to(dtype)
        case "subnormal":
            return (drawn.double().tanh() * torch.finfo(dtype).tiny).to(dtype)
        case "fine":  # all bits of float64, which the next smaller dtype cannot hold
            return (drawn.double() * (1 + 2**-40)).to(dtype)
        case "constant":
            return made[:, :1].expand_as(made).contiguous()
        case "zeros":
            made.zero_()
        case "mixed":  # all kinds row by row; every fourth row is as the first one
            for start, other in enumerate(("inf", "nan", "huge", "subnormal", "negzero")):
                made[:, start::7] = _special_values(other, drawn, dtype)[:, start::7]
            made[:, 3::4] = made[:, :1]
    return made


_COUNTS: Mapping[str, Callable[[int], object]] = {"numpy": np.int64, "torch": torch.tensor, "bool": bool}


class StepTensors:
    """Payloads and inputs of one case, in the order of its steps.

    Payloads are numbered from 1 in the order of the trace's set steps; `owners` knows the rows of each.
    """

    def __init__(self, case: Case, model: Model) -> None:
        """Draw nothing yet."""
        self.owners = RowOwners()
        self._seed = case.seed
        self._model = model
        self._sizes = model.sizes(case.trace)
        self._sets = 0
        self._given: dict[int, CallersTensor] = {}
        self._last: Tensor | None = None

    def payload(self, step: Step) -> Tensor:
        """Draw the payload (levels, tokens, hidden) of a set step, and remember whose rows they are."""
        self._sets += 1
        levels = self._sizes.levels if step.levels is None else step.levels
        hidden = self._sizes.hidden if step.hidden is None else step.hidden
        drawn = self._random((levels, step.tokens, hidden), salt=self._sets)
        payload = values_of(step, drawn * self._model.payload_scale, self._sizes.dtype)
        last, self._last = self._last, payload
        expands = step.layout in {"expanded", "one_level"}
        if step.values == "reordered" and not expands and last is not None and last.shape == payload.shape:
            payload = last.to(payload.dtype).roll(1, dims=1)
        self.owners.remember(self._sets, payload)
        return payload

    def content(self, payload: Tensor) -> Rows | None:
        """Return the origin of each row of the last payload (levels, tokens, hidden).

        None where no two rows are equal, and none was known before.
        """
        content = self.owners.runs_of([level.to(self._sizes.dtype) for level in payload.detach()])
        tokens = payload.size(1)
        plain = [(RowRange(self._sets, level, 0, tokens),) if tokens else () for level in range(len(content))]
        return None if [*content] == plain else content

    def give(
        self, lane: int, step: Step, payload: Tensor, set_payload: Callable[[Tensor], Attempt[None]]
    ) -> tuple[Attempt[None], tuple[str, ...]]:
        """Set the last payload (levels, tokens, hidden) as its step lays it out, and reuse its memory.

        `lane` is 0 for the buffer under test and 1 for that of the reference lane, each with memory of its
        own. The second value names what the call changed of the tensor that it was given.
        """
        given = self._given[lane] = laid_out(step, payload, self._given.get(lane))
        memory, before = given.memory.detach().clone(), _properties_of(given.payload)
        done = set_payload(given.payload)
        now = _properties_of(given.payload)
        changed = [name for name, value in before.items() if now[name] != value]
        if not same_bytes(memory, given.memory):  # a write that the version states too
            changed = ["bytes", *(name for name in changed if name != "version")]
        with torch.no_grad():  # a caller uses its memory for the next step at once
            given.memory.fill_(self._reused(given.memory.dtype))
        return done, tuple(changed)

    def remember_reuse(self, payload: Tensor) -> None:
        """Remember the rows that the caller wrote over the last payload (levels, tokens, hidden)."""
        self.owners.remember(-self._sets, torch.full_like(payload, self._reused(payload.dtype)))

    def _reused(self, dtype: torch.dtype) -> float:
        """Return what the caller writes over the last payload after its set: a buffer must have copied."""
        shortest = not dtype.is_floating_point and torch.iinfo(dtype).bits == 8  # bits of a byte
        return torch.iinfo(dtype).max - self._sets % 32 if shortest else -1000.0 - self._sets

    def inputs(self, tokens: int, index: int) -> Inputs:
        """Draw hidden states (tokens, hidden) and positions of the step with this index."""
        hidden = self._random((tokens, self._model.family.hidden), salt=-1 - index)
        return Inputs(hidden, self._model.family.positions(tokens, self._model.device), None)

    def _random(self, shape: tuple[int, ...], salt: int) -> Tensor:
        # Drawn on the CPU, so that every device gets the same numbers.
        generator = torch.Generator().manual_seed(self._seed * 1_000_003 + salt)
        drawn = torch.randn(shape, generator=generator)
        floats = self._sizes.dtype if self._sizes.dtype.is_floating_point else torch.float64
        return drawn.to(dtype=floats, device=self._model.device)
