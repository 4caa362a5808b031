"""Buffers of one size whose answers are views of their storage; they refuse to grow."""

import torch
from torch import Tensor


class OneTensor:
    """One tensor for all levels, made once; it has no resize, and refuses every call above its capacity."""

    regimes = "both"

    def __init__(
        self, capacity: int, hidden: int, levels: int, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.capacity = capacity
        self._rows = torch.zeros(levels, capacity, hidden, dtype=dtype, device=device)

    def get(self, tokens: int) -> tuple[Tensor, ...]:
        return self._rows[:, : self._fitting(tokens)].unbind(0)

    def set(self, payload: Tensor) -> None:
        levels, tokens, hidden = payload.shape
        if (levels, hidden) != (self._rows.size(0), self._rows.size(2)):
            raise ValueError(f"payload of shape {tuple(payload.shape)} for {tuple(self._rows.shape)}")
        self._rows[:, : self._fitting(tokens)] = payload.detach().to(self._rows.dtype)
        self._rows[:, tokens:] = 0

    def clear(self, tokens: int) -> None:
        self._fitting(tokens)
        self._rows.zero_()

    def _fitting(self, tokens: int) -> int:
        if not 0 <= tokens <= self.capacity:
            raise IndexError(f"{tokens} rows asked of {self.capacity}")
        return tokens


class Interleaved:
    """The levels of a token side by side, so that answers have a stride of all levels."""

    regimes = "both"

    def __init__(
        self, capacity: int, hidden: int, levels: int, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._table = torch.zeros(capacity, levels, hidden, dtype=dtype, device=device)

    @property
    def capacity(self) -> int:
        return self._table.size(0)

    def get(self, tokens: int) -> tuple[Tensor, ...]:
        assert 0 <= tokens <= self.capacity
        return tuple(self._table[:tokens, level] for level in range(self._table.size(1)))

    def set(self, payload: Tensor) -> None:
        by_token = payload.permute(1, 0, 2)
        assert by_token.shape[1:] == self._table.shape[1:]
        assert by_token.size(0) <= self.capacity
        self._table.zero_()
        self._table[: by_token.size(0)].copy_(by_token)

    def clear(self, tokens: int) -> None:
        assert 0 <= tokens <= self.capacity
        self._table.zero_()


class ClearsByParts:
    """Buffer that keeps the rows of other micro-batches when a step clears the rows that it asked for."""

    regimes = "both"

    def __init__(
        self, capacity: int, hidden: int, levels: int, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.capacity = capacity
        self._levels = [torch.zeros(capacity, hidden, dtype=dtype, device=device) for _ in range(levels)]
        self._held = self._cleared = 0
        self._asked = -1

    def get(self, tokens: int) -> tuple[Tensor, ...]:
        self._refuse_unless(0 <= tokens <= self.capacity)
        self._asked = tokens
        return tuple(level[:tokens] for level in self._levels)

    def set(self, payload: Tensor) -> None:
        shape = (len(self._levels), payload.size(1), self._levels[0].size(1))
        self._refuse_unless(payload.shape == shape and payload.size(1) <= self.capacity)
        for level, rows in zip(self._levels, payload, strict=True):
            level.zero_()
            level[: rows.size(0)].copy_(rows)
        self._held, self._cleared, self._asked = payload.size(1), 0, -1

    def clear(self, tokens: int) -> None:
        self._refuse_unless(0 <= tokens <= self.capacity)
        self._cleared += tokens
        part = self._asked == tokens and self._cleared < self._held
        for level in self._levels:
            level[: tokens if part else self.capacity].zero_()
        self._asked = -1

    def _refuse_unless(self, good: bool) -> None:
        if not good:
            raise RuntimeError("no such rows")


class ZeroesThenConverts(OneTensor):
    """Buffer that zeroes its rows before it converts the payload; without memory for that, rows are gone."""

    regimes = "both"

    def set(self, payload: Tensor) -> None:
        levels, tokens, hidden = payload.shape
        if (levels, hidden) != (self._rows.size(0), self._rows.size(2)):
            raise ValueError(f"payload of shape {tuple(payload.shape)} for {tuple(self._rows.shape)}")
        self._fitting(tokens)
        self._rows.zero_()
        self._rows[:, :tokens] = payload.detach().to(self._rows.dtype, copy=True)
