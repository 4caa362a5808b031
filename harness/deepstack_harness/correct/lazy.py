"""Buffers that allocate late or use storage in turns: right in live use alone."""

import torch
from torch import Tensor


class Lazy:
    """Buffer that allocates at the first `set`, and frees everything at `clear`."""

    regimes = "live"

    def __init__(
        self, capacity: int, hidden: int, levels: int, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.capacity = capacity
        self._like = torch.zeros(0, dtype=dtype, device=device)
        self._shape = (levels, hidden)
        self._rows: Tensor | None = None

    def get(self, tokens: int) -> tuple[Tensor, ...]:
        self._check(tokens)
        levels, hidden = self._shape
        if self._rows is None:
            return tuple(self._like.new_zeros(tokens, hidden) for _ in range(levels))
        return tuple(self._rows[level, :tokens] for level in range(levels))

    def set(self, payload: Tensor) -> None:
        levels, tokens, hidden = payload.shape
        if (levels, hidden) != self._shape:
            raise ValueError(f"wrong shape {tuple(payload.shape)}")
        self._check(tokens)
        rows = self._like.new_zeros(levels, self.capacity, hidden)
        rows[:, :tokens] = payload.detach()
        self._rows = rows

    def clear(self, tokens: int) -> None:
        self._check(tokens)
        self._rows = None

    def _check(self, tokens: int) -> None:
        if tokens < 0 or tokens > self.capacity:
            raise ValueError(f"{tokens} rows of {self.capacity}")


class Ring:
    """Three storages in turn, so that a payload is written while the one before is still being read."""

    regimes = "live"

    def __init__(
        self, capacity: int, hidden: int, levels: int, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.capacity = capacity
        self._slots = torch.zeros(3, levels, capacity, hidden, dtype=dtype, device=device)
        self._turn = 0

    def get(self, tokens: int) -> tuple[Tensor, ...]:
        if tokens not in range(self.capacity + 1):
            raise ValueError(tokens)
        return self._slots[self._turn, :, :tokens].unbind()

    def set(self, payload: Tensor) -> None:
        if payload.size(1) > self.capacity or payload.shape[::2] != self._slots.shape[1::2]:
            raise ValueError(payload.shape)
        self._turn = (self._turn + 1) % 3
        slot = self._slots[self._turn]
        slot.zero_()
        slot[:, : payload.size(1)].copy_(payload)

    def clear(self, tokens: int) -> None:
        if tokens not in range(self.capacity + 1):
            raise ValueError(tokens)
        self._slots[self._turn].zero_()
