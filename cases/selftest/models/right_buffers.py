"""Right buffers in unusual style, written from the text of the contract before the inputs that judge them.

Each passes every rule in live use. All but one are `Plain` but for one thing, and refuse with an error of
another class.
"""

import functools
import threading
import time
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import ClassVar

import torch
from torch import Tensor

from cases.selftest.models.wrong_buffers import Plain


class Refusal(Exception):
    """An exception that has no text."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


class OneMemory(Plain):
    """Holds all levels in one flat tensor, and returns windows; its exception has no text."""

    refusal = Refusal

    def made(self) -> None:
        flat = self.rows[0].new_zeros(self.capacity * self.levels * self.hidden)
        window = (self.capacity, self.hidden), (self.levels * self.hidden, 1)
        self.rows = [flat.as_strided(*window, level * self.hidden) for level in range(self.levels)]


class CopiesOnEveryCall(Plain):
    """Holds only the payload, of exactly N rows, and returns padded copies."""

    def made(self) -> None:
        self.forget()

    def get(self, tokens: int) -> tuple[Tensor, ...]:
        self.require(tokens)
        padding = (0, 0, 0, max(0, tokens - self.count))
        padded = (torch.nn.functional.pad(rows[:tokens], padding) for rows in self.rows)
        return tuple(rows.clone(memory_format=torch.contiguous_format) for rows in padded)

    def require(self, tokens: int) -> None:
        super().require(min(tokens, 0))
        self.capacity = max(self.capacity, tokens)

    def write(self, payload: Tensor) -> None:
        self.rows = list(payload.detach().to(self.rows[0].dtype, copy=True))
        self.count = payload.size(1)

    def forget(self) -> None:
        self.rows, self.count = [rows[:0] for rows in self.rows], 0


class RowsInADict(CopiesOnEveryCall):
    """Holds each row for itself in a dict, and stacks the requested ones."""

    refusal = AssertionError
    table: dict[tuple[int, int], Tensor]

    def made(self) -> None:
        self.zero = self.rows[0].new_zeros(self.hidden)
        self.forget()

    def get(self, tokens: int) -> tuple[Tensor, ...]:
        self.require(tokens)
        if not tokens:
            return tuple(self.zero.new_empty(0, self.hidden) for _ in range(self.levels))
        return tuple(
            torch.stack([self.table.get((level, row), self.zero) for row in range(tokens)])
            for level in range(self.levels)
        )

    def write(self, payload: Tensor) -> None:
        copied = payload.detach().to(self.zero.dtype, copy=True)
        self.table = {
            (level, row): rows for level, by_row in enumerate(copied) for row, rows in enumerate(by_row)
        }

    def forget(self) -> None:
        self.table = {}


class Columns(Plain):
    """Holds hidden first and rows last; get returns a transposed view with the strides (1, capacity)."""

    refusal = IndexError

    def made(self) -> None:
        self.rows = [rows.t().contiguous().t() for rows in self.rows]


class TwoBanks(Plain):
    """Writes each payload into the other one of two banks, and returns views of the bank written last."""

    refusal = OverflowError

    def made(self) -> None:
        self.banks = deque((self.rows, [torch.zeros_like(rows) for rows in self.rows]))

    def write(self, payload: Tensor) -> None:
        self.banks.rotate()
        self.rows = self.banks[0]
        super().write(payload)


class ZeroesLate(Plain):
    """Zeroes stale rows when they are requested, and has twice the room that it was made with."""

    refusal = MemoryError
    clean = 0

    def made(self) -> None:
        self.capacity *= 2
        self.rows = [rows.new_full((self.capacity, self.hidden), torch.nan) for rows in self.rows]

    def get(self, tokens: int) -> tuple[Tensor, ...]:
        self.require(tokens)
        if tokens > self.clean:
            for rows in self.rows:
                rows[self.clean : tokens] = 0
            self.clean = tokens
        return tuple(rows[:tokens] for rows in self.rows)

    def write(self, payload: Tensor) -> None:
        self.clean = payload.size(1)
        for rows, level in zip(self.rows, payload, strict=True):
            rows[: self.clean] = level

    def forget(self) -> None:
        self.clean = 0


def made_of_functions(
    capacity: int, hidden: int, levels: int, *, dtype: torch.dtype, device: torch.device
) -> SimpleNamespace:
    """Make a buffer whose calls are closures and partial functions: there is no class."""
    store = [torch.zeros(capacity, hidden, dtype=dtype, device=device) for _ in range(levels)]

    def limited(call: Callable[[int], tuple[Tensor, ...]], tokens: int) -> tuple[Tensor, ...]:
        if tokens < 0 or tokens > capacity:
            raise ArithmeticError(f"{tokens} of {capacity}")
        return call(tokens)

    def write(payload: Tensor) -> None:
        by_level = list(payload)
        shapes = {tuple(level.shape[1:]) for level in by_level}
        if len(by_level) != levels or shapes != {(hidden,)} or by_level[0].shape[0] > capacity:
            raise ArithmeticError(f"{shapes}")
        for rows, level in zip(store, by_level, strict=True):
            rows.zero_()[: len(level)] = level

    return SimpleNamespace(
        capacity=capacity,
        get=functools.partial(limited, lambda tokens: tuple(rows[:tokens] for rows in store)),
        clear=functools.partial(limited, lambda _: tuple(rows.zero_() for rows in store)),
        set=write,
    )


class KeepsTheOtherMicroBatch(Plain):
    """Clears only the rows of a micro-batch where the get before returned just these."""

    requested, cleared = -1, 0

    def get(self, tokens: int) -> tuple[Tensor, ...]:
        self.require(tokens)
        self.requested = tokens
        return tuple(rows[:tokens] for rows in self.rows)

    def write(self, payload: Tensor) -> None:
        super().write(payload)
        self.requested, self.cleared = -1, 0

    def clear(self, tokens: int) -> None:
        self.require(tokens)
        self.cleared += tokens
        if self.requested == tokens and self.cleared < self.count:
            for rows in self.rows:
                rows[:tokens].zero_()
        else:
            self.forget()
            self.cleared = 0
        self.requested = -1


class SkipsEqualPayloads(Plain):
    """Holds a copy of the caller's payload, and skips a set of an equal one; capacity is no attribute."""

    last: Tensor | None = None

    def made(self) -> None:
        del self.capacity

    def __getattr__(self, name: str) -> int:
        if name == "capacity":
            return self.rows[0].size(0)
        raise AttributeError(name)

    def write(self, payload: Tensor) -> None:
        last = self.last
        alike = last is not None and (last.shape, last.dtype) == (payload.shape, payload.dtype)
        if last is None or not alike or not torch.equal(last, payload):
            super().write(payload)
            self.last = payload.detach().clone()

    def forget(self) -> None:
        super().forget()
        self.last = None


class FreesIdleStorage(Plain):
    """Gives its storage back after a minute without a payload, and makes it anew at the next call."""

    since = 0.0

    def require(self, tokens: int) -> None:
        super().require(tokens)
        now = time.monotonic()
        if not self.count and now - self.since > 60:
            self.rows = [torch.zeros_like(rows) for rows in self.rows]
        self.since = now


class SlicesOfAnArena(Plain):
    """Takes a region of memory of its class that no other buffer has, while there is room."""

    arenas: ClassVar[dict[tuple[object, ...], tuple[Tensor, int]]] = {}
    room = 1 << 18

    def made(self) -> None:
        like, size = self.rows[0], self.capacity * self.hidden * self.levels
        key = (like.dtype, like.device, torch.is_inference_mode_enabled())
        arena, used = self.arenas.get(key) or (like.new_zeros(self.room), 0)
        if used + size > self.room:
            arena, used = like.new_zeros(size), 0
        else:
            self.arenas[key] = (arena, used + size)
        self.rows = list(arena[used : used + size].view(self.levels, self.capacity, self.hidden))


class CopiesInAThreadAndWaits(Plain):
    """Copies in a thread of its own, and returns when the copy is done."""

    def write(self, payload: Tensor) -> None:
        copying = threading.Thread(target=self.copy, args=(payload, torch.is_inference_mode_enabled()))
        copying.start()
        copying.join()

    def copy(self, payload: Tensor, inference: bool) -> None:
        with torch.inference_mode(inference), torch.no_grad():
            super().write(payload)


RIGHT = (
    "OneMemory",
    "RowsInADict",
    "Columns",
    "CopiesOnEveryCall",
    "TwoBanks",
    "ZeroesLate",
    "made_of_functions",
    "KeepsTheOtherMicroBatch",
    "SkipsEqualPayloads",
    "FreesIdleStorage",
    "SlicesOfAnArena",
    "CopiesInAThreadAndWaits",
)
"""The names of the right buffers of this file."""
