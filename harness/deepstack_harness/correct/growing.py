"""Buffers that move: they grow by copying, and announce it with a generation where graphs matter."""

import torch
from torch import Tensor


class Reserve:
    """Doubles its room as a std::vector does, never shrinks, and frees old storage at once."""

    regimes = "both"

    def __init__(
        self, capacity: int, hidden: int, levels: int, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.generation = 0
        self.held = 0
        self.store = torch.zeros(levels, capacity, hidden, dtype=dtype, device=device)

    @property
    def capacity(self) -> int:
        return self.store.size(1)

    def get(self, tokens: int) -> tuple[Tensor, ...]:
        self._reserve(tokens)
        return tuple(level[:tokens] for level in self.store)

    def set(self, payload: Tensor) -> None:
        if payload.shape[::2] != self.store.shape[::2]:
            raise ValueError(f"{tuple(payload.shape)} does not fit {tuple(self.store.shape)}")
        self._reserve(payload.size(1))
        self.store[:, : payload.size(1)].copy_(payload)
        self.store[:, payload.size(1) :].zero_()
        self.held = payload.size(1)

    def clear(self, tokens: int) -> None:
        if tokens < 0:
            raise ValueError(tokens)
        self.store.zero_()
        self.held = 0

    def resize(self, tokens: int) -> None:
        self._reserve(tokens)

    def _reserve(self, tokens: int) -> None:
        if tokens < 0:
            raise ValueError(tokens)
        if tokens > self.capacity:
            levels, old, hidden = self.store.shape
            larger = self.store.new_zeros(levels, max(tokens, 2 * old), hidden)
            larger[:, :old].copy_(self.store)
            self.store = larger
            self.generation += 1


class MovesAtEverySet:
    """Buffer that puts every payload into storage of its own, and announces each move."""

    regimes = "both"

    def __init__(
        self, capacity: int, hidden: int, levels: int, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.generation = 1
        self._levels = tuple(torch.zeros(capacity, hidden, dtype=dtype, device=device) for _ in range(levels))

    @property
    def capacity(self) -> int:
        return len(self._levels[0])

    def get(self, tokens: int) -> tuple[Tensor, ...]:
        self._check(tokens)
        return tuple(level[:tokens] for level in self._levels)

    def set(self, payload: Tensor) -> None:
        if len(payload) != len(self._levels) or payload.size(-1) != self._levels[0].size(-1):
            raise ValueError(f"wrong payload {tuple(payload.shape)}")
        rows = max(self.capacity, payload.size(1))
        new = tuple(level.new_zeros(rows, level.size(1)) for level in self._levels)
        for level, part in zip(new, payload, strict=True):
            level[: len(part)] = part.detach().to(level.dtype)
        self._levels = new
        self.generation += 1

    def clear(self, tokens: int) -> None:
        self._check(tokens)
        for level in self._levels:
            level.zero_()

    def _check(self, tokens: int) -> None:
        if not 0 <= tokens <= self.capacity:
            raise ValueError(f"{tokens} of {self.capacity} rows")


class FitsExactly:
    """Reallocates at every resize to the rows asked for, or to N where that is more; announces it."""

    regimes = "both"

    def __init__(
        self, capacity: int, hidden: int, levels: int, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._like = torch.zeros(0, hidden, dtype=dtype, device=device)
        self._held = 0
        self.capacity = capacity
        self.generation = 0
        self._level = {number: self._zeros(capacity) for number in range(levels)}

    def get(self, tokens: int) -> tuple[Tensor, ...]:
        if tokens < 0:
            raise ValueError("negative")
        if tokens > self.capacity:
            self.resize(tokens)
        return tuple(self._level[number][:tokens] for number in sorted(self._level))

    def set(self, payload: Tensor) -> None:
        levels, tokens, hidden = payload.shape
        if levels != len(self._level) or hidden != self._like.size(1):
            raise ValueError("other shape")
        if tokens > self.capacity:
            self.resize(tokens)
        for number, level in self._level.items():
            level.zero_()
            level[:tokens].copy_(payload[number])
        self._held = tokens

    def clear(self, tokens: int) -> None:
        if tokens < 0:
            raise ValueError("negative")
        self._held = 0
        for level in self._level.values():
            level.zero_()

    def resize(self, tokens: int) -> None:
        if tokens < 0:
            raise ValueError("negative")
        rows = max(tokens, self._held)
        moved = {number: self._zeros(rows) for number in self._level}
        for number, level in self._level.items():
            moved[number][: self._held] = level[: self._held]
        self._level, self.capacity = moved, rows
        self.generation += 1

    def _zeros(self, rows: int) -> Tensor:
        return self._like.new_zeros(rows, self._like.size(1))


class GrowsThenCopies(Reserve):
    """Grows as `Reserve` does, and answers with copies: the copy may find no memory after the growth."""

    regimes = "live"

    def get(self, tokens: int) -> tuple[Tensor, ...]:
        self._reserve(tokens)
        return tuple(level[:tokens].clone() for level in self.store)
