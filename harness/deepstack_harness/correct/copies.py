"""Buffers whose answers are copies: right in live use, where an address is nobody's business."""

import torch
from torch import Tensor


class KeepsPayload:
    """Copy of the payload alone, padded at every `get`; it has no capacity to grow beyond."""

    regimes = "live"

    def __init__(
        self, capacity: int, hidden: int, levels: int, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.capacity = capacity
        self._payload = torch.zeros(levels, 0, hidden, dtype=dtype, device=device)

    def get(self, tokens: int) -> tuple[Tensor, ...]:
        if tokens < 0:
            raise ValueError(f"{tokens} rows")
        levels, held, hidden = self._payload.shape
        padded = self._payload.new_zeros(levels, tokens, hidden)
        padded[:, :held] = self._payload[:, :tokens]
        return tuple(padded)

    def set(self, payload: Tensor) -> None:
        if payload.size(0) != self._payload.size(0) or payload.size(2) != self._payload.size(2):
            raise ValueError(f"payload of shape {tuple(payload.shape)}")
        kept = self._payload.new_empty(payload.shape)
        kept.copy_(payload)
        self._payload = kept
        self.capacity = max(self.capacity, payload.size(1))

    def clear(self, tokens: int) -> None:
        if tokens < 0:
            raise ValueError(f"{tokens} rows")
        self._payload = self._payload[:, :0]

    def resize(self, tokens: int) -> None:
        if tokens < 0:
            raise ValueError(f"{tokens} rows")
        self.capacity = max(self.capacity, tokens)


class RowByRow:
    """A list of rows for each level, stacked at every get."""

    regimes = "live"

    def __init__(
        self, capacity: int, hidden: int, levels: int, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.capacity = capacity
        self._none = torch.zeros(hidden, dtype=dtype, device=device)
        self._rows: list[list[Tensor]] = [[] for _ in range(levels)]

    def get(self, tokens: int) -> tuple[Tensor, ...]:
        self._check(tokens)
        if tokens == 0:
            return tuple(self._none.new_zeros(0, len(self._none)) for _ in self._rows)
        padding = [self._none] * max(0, tokens - len(self._rows[0]))
        return tuple(torch.stack([*rows[:tokens], *padding]) for rows in self._rows)

    def set(self, payload: Tensor) -> None:
        self._check(payload.size(1))
        if payload.size(0) != len(self._rows) or payload.size(2) != len(self._none):
            raise TypeError(f"payload of shape {tuple(payload.shape)}")
        copied = payload.detach().to(self._none.dtype, copy=True)
        self._rows = [list(level) for level in copied]

    def clear(self, tokens: int) -> None:
        self._check(tokens)
        self._rows = [[] for _ in self._rows]

    def _check(self, tokens: int) -> None:
        if tokens < 0 or tokens > self.capacity:
            raise IndexError(tokens)


class Masked:
    """Never zeroes: a mask says which rows count, and get puts zeros in place of the others."""

    regimes = "live"

    def __init__(
        self, capacity: int, hidden: int, levels: int, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.capacity = capacity
        self._data = torch.full((levels, capacity, hidden), torch.nan, dtype=dtype, device=device)
        self._counts = torch.zeros(capacity, 1, dtype=torch.bool, device=device)

    def get(self, tokens: int) -> tuple[Tensor, ...]:
        if not 0 <= tokens <= self.capacity:
            raise ValueError(tokens)
        zero = torch.zeros((), dtype=self._data.dtype, device=self._data.device)
        return tuple(torch.where(self._counts[:tokens], level[:tokens], zero) for level in self._data)

    def set(self, payload: Tensor) -> None:
        tokens = payload.size(1)
        if tokens > self.capacity or payload.shape != self._data[:, :tokens].shape:
            raise ValueError(tuple(payload.shape))
        self._data[:, :tokens].copy_(payload)
        self._counts[:tokens] = True
        self._counts[tokens:] = False

    def clear(self, tokens: int) -> None:
        if not 0 <= tokens <= self.capacity:
            raise ValueError(tokens)
        self._counts.fill_(False)
