"""Right buffers of many designs, written from the contract's text and not from `ReferenceBuffer`.

Each passes every rule in the regimes that its `regimes` names, `live` or `both`: a harness that refuses one
of them is wrong. `OneTensor` is of one size, returns views of its storage and refuses to grow. Those built on
it differ in one thing: where rows lie, when they are zeroed, or how room is made. They refuse a call with an
error of another class. Some are right only in live use, where no graph reads an address: their get returns
copies, or they allocate late or use storage in turns.
"""

from collections import deque
from typing import ClassVar

import torch
from torch import Tensor


class OneTensor:
    """One tensor for all levels, made once; it has no resize, and refuses every call above its capacity."""

    regimes = "both"
    refusal: ClassVar[type[Exception]] = IndexError

    def __init__(
        self, capacity: int, hidden: int, levels: int, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.capacity = capacity
        self.rows = torch.zeros(levels, capacity, hidden, dtype=dtype, device=device)
        self.made()

    def made(self) -> None:
        """Finish the constructor."""

    def get(self, tokens: int) -> tuple[Tensor, ...]:
        self.make_room(tokens)
        return self.rows[:, :tokens].unbind(0)

    def set(self, payload: Tensor) -> None:
        self.fit(payload)
        tokens = payload.size(1)
        self.make_room(tokens)
        self.rows[:, :tokens] = payload.detach().to(self.rows.dtype)
        self.rows[:, tokens:] = 0

    def clear(self, tokens: int) -> None:
        self.make_room(tokens)
        self.rows.zero_()

    def make_room(self, tokens: int) -> None:
        """Refuse a count that there are no rows for."""
        if not 0 <= tokens <= self.capacity:
            raise self.refusal(f"{tokens} rows of {self.capacity}")

    def fit(self, payload: Tensor) -> None:
        """Refuse a payload of other levels or another hidden size."""
        if payload.dim() != 3 or payload.shape[::2] != self.rows.shape[::2]:
            raise self.refusal(f"payload of shape {tuple(payload.shape)} for {tuple(self.rows.shape)}")


class KeepsPayload(OneTensor):
    """A copy of the payload and nothing else, padded at every `get`; it has no capacity to grow beyond."""

    regimes = "live"
    refusal = ValueError

    def made(self) -> None:
        self.rows = self.rows[:, :0].clone()

    def get(self, tokens: int) -> tuple[Tensor, ...]:
        self.make_room(tokens)
        levels, held, hidden = self.rows.shape
        padded = self.rows.new_zeros(levels, tokens, hidden)
        padded[:, :held] = self.rows[:, :tokens]
        return tuple(padded)

    def set(self, payload: Tensor) -> None:
        self.fit(payload)
        kept = self.rows.new_empty(payload.shape)
        kept.copy_(payload)
        self.rows = kept
        self.make_room(payload.size(1))

    def clear(self, tokens: int) -> None:
        self.make_room(tokens)
        self.rows = self.rows[:, :0]

    def make_room(self, tokens: int) -> None:
        super().make_room(min(tokens, 0))
        self.capacity = max(self.capacity, tokens)

    resize = make_room


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


class Masked(OneTensor):
    """Never zeroes: a mask marks the rows that count, and get puts zeros in place of the others."""

    regimes = "live"
    refusal = ValueError

    def made(self) -> None:
        self.rows.fill_(torch.nan)
        self._counts = torch.zeros(self.capacity, 1, dtype=torch.bool, device=self.rows.device)

    def get(self, tokens: int) -> tuple[Tensor, ...]:
        zero = self.rows.new_zeros(())
        return tuple(torch.where(self._counts[:tokens], level, zero) for level in super().get(tokens))

    def set(self, payload: Tensor) -> None:
        self.fit(payload)
        tokens = payload.size(1)
        self.make_room(tokens)
        self.rows[:, :tokens].copy_(payload)
        self._counts[:tokens] = True
        self._counts[tokens:] = False

    def clear(self, tokens: int) -> None:
        self.make_room(tokens)
        self._counts.fill_(False)


class Reserve(OneTensor):
    """Doubles its room as a std::vector does, never shrinks, and frees old storage at once."""

    regimes = "both"
    refusal = ValueError
    generation = 0

    def clear(self, tokens: int) -> None:
        super().clear(min(tokens, self.capacity))

    def make_room(self, tokens: int) -> None:
        if tokens > self.capacity:
            levels, old, hidden = self.rows.shape
            larger = self.rows.new_zeros(levels, max(tokens, 2 * old), hidden)
            larger[:, :old].copy_(self.rows)
            self.rows, self.capacity = larger, larger.size(1)
            self.generation += 1
        super().make_room(tokens)

    resize = make_room


class MovesAtEverySet(OneTensor):
    """Buffer that puts every payload into storage of its own, and announces each move."""

    regimes = "both"
    refusal = ValueError
    generation = 1

    def set(self, payload: Tensor) -> None:
        self.fit(payload)
        levels, tokens, hidden = payload.shape
        moved = self.rows.new_zeros(levels, max(self.capacity, tokens), hidden)
        moved[:, :tokens] = payload.detach().to(moved.dtype)
        self.rows, self.capacity = moved, moved.size(1)
        self.generation += 1


class FitsExactly(OneTensor):
    """Reallocates at every resize to the requested rows, or to N where that is more; announces it."""

    regimes = "both"
    refusal = ValueError
    generation = 0
    _held = 0

    def set(self, payload: Tensor) -> None:
        super().set(payload)
        self._held = payload.size(1)

    def clear(self, tokens: int) -> None:
        super().clear(min(tokens, self.capacity))
        self._held = 0

    def resize(self, tokens: int) -> None:
        super().make_room(min(tokens, 0))
        levels, _, hidden = self.rows.shape
        moved = self.rows.new_zeros(levels, max(tokens, self._held), hidden)
        moved[:, : self._held] = self.rows[:, : self._held]
        self.rows, self.capacity = moved, moved.size(1)
        self.generation += 1

    def make_room(self, tokens: int) -> None:
        if tokens > self.capacity:
            self.resize(tokens)
        super().make_room(tokens)


class GrowsThenCopies(Reserve):
    """Grows as `Reserve` does, and returns copies: the copy may find no memory after the growth."""

    regimes = "live"

    def get(self, tokens: int) -> tuple[Tensor, ...]:
        return tuple(level.clone() for level in super().get(tokens))


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


class Ring(OneTensor):
    """Three storages in turn, so that a payload is written while the one before is still being read."""

    regimes = "live"
    refusal = ValueError

    def made(self) -> None:
        self._slots = deque((self.rows, torch.zeros_like(self.rows), torch.zeros_like(self.rows)))

    def set(self, payload: Tensor) -> None:
        self.fit(payload)
        self.make_room(payload.size(1))
        self._slots.rotate()
        self.rows = self._slots[0]
        super().set(payload)


class Interleaved(OneTensor):
    """The levels of a token next to each other, so that each level has a stride of all levels."""

    regimes = "both"
    refusal = AssertionError

    def made(self) -> None:
        self.rows = self.rows.transpose(0, 1).contiguous().transpose(0, 1)


class ClearsByParts(OneTensor):
    """Buffer that preserves the rows of other micro-batches when a step clears its own rows."""

    regimes = "both"
    refusal = RuntimeError
    _held = _cleared = 0
    _asked = -1

    def get(self, tokens: int) -> tuple[Tensor, ...]:
        levels = super().get(tokens)
        self._asked = tokens
        return levels

    def set(self, payload: Tensor) -> None:
        super().set(payload)
        self._held, self._cleared, self._asked = payload.size(1), 0, -1

    def clear(self, tokens: int) -> None:
        self.make_room(tokens)
        self._cleared += tokens
        part = self._asked == tokens and self._cleared < self._held
        self.rows[:, : tokens if part else self.capacity].zero_()
        self._asked = -1


class ZeroesThenConverts(OneTensor):
    """Buffer that zeroes its rows before it converts the payload; without memory for that, rows are gone."""

    regimes = "both"

    def set(self, payload: Tensor) -> None:
        self.fit(payload)
        self.make_room(payload.size(1))
        self.rows.zero_()
        self.rows[:, : payload.size(1)] = payload.detach().to(self.rows.dtype, copy=True)
