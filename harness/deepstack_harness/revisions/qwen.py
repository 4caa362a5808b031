"""The buffer of Qwen3-VL and Qwen3-Omni in vLLM, one class for each change of its semantics.

Upstream the four methods are `_get_deepstack_input_embeds`, `_set_..`, `_clear_..` and (since #43617)
`_resize_..` of the model class.  Here a buffer has storage of its own, per level a tensor
(capacity, hidden).  A count is a number of token rows.
"""

import torch
from torch import Tensor
from typing_extensions import override

from deepstack_harness.errors import StepUnavailable


class OriginalBuffer:
    """The first revision, vLLM 0.11 .. 0.19.1: no counter of set tokens, and get always slices."""

    def __init__(
        self, capacity: int, hidden: int, levels: int, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        """Allocate `levels` zeroed tensors (capacity, hidden)."""
        self._hidden = hidden
        self._levels = [torch.zeros(capacity, hidden, dtype=dtype, device=device) for _ in range(levels)]

    @property
    def capacity(self) -> int:
        """Token rows of a level."""
        return self._levels[0].size(0)

    def get(self, tokens: int) -> tuple[Tensor, ...] | None:
        """Return a slice (min(tokens, capacity), hidden) of every level."""
        return tuple(level[:tokens] for level in self._levels)

    def set(self, payload: Tensor) -> None:
        """Copy a payload (levels, N, hidden) into rows [0, N).

        Above the capacity the storage is allocated anew, and nobody is told.
        """
        tokens = payload.size(1)
        if tokens > self.capacity:
            self._reallocate(tokens)
        for index, level in enumerate(self._levels):
            level[:tokens].copy_(payload[index])

    def clear(self, tokens: int) -> None:
        """Zero the first `tokens` rows of every level."""
        if tokens > 0:
            for level in self._levels:
                level[:tokens].zero_()

    def resize(self, tokens: int) -> None:
        """Raise `StepUnavailable`: upstream has no such call before #43617."""
        raise StepUnavailable(f"{type(self).__name__} has no resize")

    def _reallocate(self, rows: int) -> None:
        self._levels = [level.new_zeros(rows, self._hidden) for level in self._levels]


class Pr40145Buffer(OriginalBuffer):
    """vLLM #40145, in 0.20.0 and 0.20.1: a counter of set tokens, None when empty, and checks against it."""

    def __init__(
        self, capacity: int, hidden: int, levels: int, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        """Allocate `levels` zeroed tensors (capacity, hidden); the counter starts at 0."""
        super().__init__(capacity, hidden, levels, dtype=dtype, device=device)
        self._tokens_set = 0

    @override
    def get(self, tokens: int) -> tuple[Tensor, ...] | None:
        """Return (tokens, hidden) per level, or None while the counter is 0 (vLLM issue 43602).

        Raises `ValueError` for more tokens than were set.
        """
        if self._tokens_set == 0:
            return None
        self._check(tokens, "get")
        return super().get(tokens)

    @override
    def set(self, payload: Tensor) -> None:
        """Copy a payload (levels, N, hidden) and count N; rows behind N keep what they held."""
        super().set(payload)
        self._tokens_set = payload.size(1)

    @override
    def clear(self, tokens: int) -> None:
        """Zero the first `tokens` rows and reset the counter; do nothing while the counter is 0.

        Raises `ValueError` for more tokens than were set.
        """
        if self._tokens_set == 0:
            return
        if tokens > 0:
            self._check(tokens, "clear")
            super().clear(tokens)
            self._tokens_set = 0

    def _check(self, tokens: int, call: str) -> None:
        # The count that is asked for is padded, the counter is not: vLLM issue 41485.
        if tokens > self._tokens_set:
            raise ValueError(f"{call} of {tokens} tokens, but only {self._tokens_set} were set")


class Pr40932Buffer(Pr40145Buffer):
    """vLLM #40932, in 0.20.2 .. 0.22.1: the checks are gone, the None of an empty buffer stays."""

    @override
    def _check(self, tokens: int, call: str) -> None:
        """Accept every count; a get above the capacity answers with fewer rows."""


class Pr43617Buffer(Pr40932Buffer):
    """vLLM #43617, in 0.23.0 .. 0.27: get never answers None; above the capacity it grows from zeros."""

    @override
    def get(self, tokens: int) -> tuple[Tensor, ...] | None:
        """Return (tokens, hidden) per level, zeros when empty; growth loses the payload."""
        if tokens > self.capacity:
            self.resize(tokens)
        return OriginalBuffer.get(self, tokens)

    @override
    def resize(self, tokens: int) -> None:
        """Allocate zeroed storage of `tokens` rows; nothing is copied, and the counter stays."""
        self._reallocate(tokens)


class Pr49397Buffer(Pr43617Buffer):
    """vLLM #49397, in 0.28.0 .. 0.33.0: no buffer at all where the vision tower is skipped."""

    def __init__(
        self,
        capacity: int,
        hidden: int,
        levels: int,
        *,
        dtype: torch.dtype,
        device: torch.device,
        vision: bool = True,
    ) -> None:
        """Allocate `levels` zeroed tensors (capacity, hidden); they are used only beside a vision tower."""
        super().__init__(capacity, hidden, levels, dtype=dtype, device=device)
        self.vision = vision

    @override
    def get(self, tokens: int) -> tuple[Tensor, ...] | None:
        """Return (tokens, hidden) per level, or None without a vision tower."""
        return super().get(tokens) if self.vision else None

    @override
    def set(self, payload: Tensor) -> None:
        """Copy a payload (levels, N, hidden); drop it without a vision tower."""
        if self.vision:
            super().set(payload)


class Pr44384Buffer(Pr43617Buffer):
    """vLLM #44384, not merged: levels that are made anew in the dtype and on the device of a tensor."""

    def follow(self, like: Tensor) -> None:
        """Make the levels anew, zeroed, unless they have the dtype and device of `like` (n, hidden).

        Upstream, get itself is given the embeddings of the step.
        """
        if {(level.dtype, level.device) for level in self._levels} != {(like.dtype, like.device)}:
            shape = (self.capacity, self._hidden)
            self._levels = [torch.zeros(shape, dtype=like.dtype, device=like.device) for _ in self._levels]

    @override
    def set(self, payload: Tensor) -> None:
        """Follow a payload (levels, N, hidden) to its dtype and device, then copy it."""
        self.follow(payload)
        super().set(payload)
