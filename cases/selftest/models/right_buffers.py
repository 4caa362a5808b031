"""Right buffers in unusual style, written from the text of the contract before the inputs that judge them.

Each class passes every rule in live use.  Classes are made with (capacity, hidden, levels, *, dtype, device).
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


class Refusal(Exception):
    """An exception that has no text."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


class OneMemory:
    """Holds all levels in one flat tensor, and returns windows; its exception has no text."""

    def __init__(
        self, capacity: int, hidden: int, levels: int, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.flat = torch.zeros(capacity * levels * hidden, dtype=dtype, device=device)
        self.sizes = (capacity, levels, hidden)
        self.capacity = capacity

    def get(self, tokens: int) -> tuple[Tensor, ...]:
        capacity, levels, hidden = self.sizes
        if not 0 <= tokens <= capacity:
            raise Refusal
        window = (tokens, hidden), (levels * hidden, 1)
        return tuple(self.flat.as_strided(*window, level * hidden) for level in range(levels))

    def set(self, payload: Tensor) -> None:
        capacity, levels, hidden = self.sizes
        if payload.dim() != 3 or payload.shape[::2] != (levels, hidden) or payload.shape[1] > capacity:
            raise Refusal
        self.flat.zero_()
        for rows, level in zip(self.get(payload.shape[1]), payload, strict=True):
            rows.copy_(level)

    def clear(self, tokens: int) -> None:
        if not 0 <= tokens <= self.capacity:
            raise Refusal
        self.flat.zero_()


class RowsInADict:
    """Holds each row for itself in a dict, and stacks the requested ones."""

    def __init__(
        self, capacity: int, hidden: int, levels: int, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.table: dict[tuple[int, int], Tensor] = {}
        self.zero = torch.zeros(hidden, dtype=dtype, device=device)
        self.levels, self.capacity = range(levels), capacity

    def get(self, tokens: int) -> tuple[Tensor, ...]:
        assert tokens >= 0
        self.capacity = max(self.capacity, tokens)
        if not tokens:
            return tuple(self.zero.new_empty(0, self.zero.numel()) for _ in self.levels)
        return tuple(
            torch.stack([self.table.get((level, row), self.zero) for row in range(tokens)])
            for level in self.levels
        )

    def set(self, payload: Tensor) -> None:
        levels, tokens, hidden = payload.shape
        assert (levels, hidden) == (len(self.levels), self.zero.numel())
        self.capacity = max(self.capacity, tokens)
        copied = payload.detach().to(self.zero.dtype, copy=True)
        self.table = {(level, row): copied[level, row] for level in self.levels for row in range(tokens)}

    def clear(self, tokens: int) -> None:
        assert tokens >= 0
        self.table = {}


class Columns:
    """Holds hidden first and rows last; get returns a transposed view with the strides (1, capacity)."""

    def __init__(
        self, capacity: int, hidden: int, levels: int, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.cube = torch.zeros(levels, hidden, capacity, dtype=dtype, device=device)

    @property
    def capacity(self) -> int:
        return self.cube.shape[-1]

    def get(self, tokens: int) -> tuple[Tensor, ...]:
        self._in_range(tokens)
        return self.cube[:, :, :tokens].transpose(1, 2).unbind()

    def set(self, payload: Tensor) -> None:
        levels, tokens, hidden = payload.shape
        if (levels, hidden) != tuple(self.cube.shape[:2]):
            raise TypeError(payload.shape)
        self._in_range(tokens)
        self.cube.zero_()[:, :, :tokens] = payload.transpose(1, 2)

    def clear(self, tokens: int) -> None:
        self._in_range(tokens)
        self.cube.zero_()

    def _in_range(self, tokens: int) -> None:
        if tokens not in range(self.capacity + 1):
            raise IndexError(tokens)


class CopiesOnEveryCall:
    """Holds only the payload, of exactly N rows, and returns padded copies."""

    def __init__(
        self, capacity: int, hidden: int, levels: int, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.payload = torch.zeros(levels, 0, hidden, dtype=dtype, device=device)
        self.capacity = capacity

    def get(self, tokens: int) -> tuple[Tensor, ...]:
        if tokens < 0:
            raise ValueError(tokens)
        self.capacity = max(self.capacity, tokens)
        rows = self.payload.shape[1]
        padded = torch.nn.functional.pad(self.payload[:, :tokens], (0, 0, 0, max(0, tokens - rows)))
        return tuple(padded.clone(memory_format=torch.contiguous_format))

    def set(self, payload: Tensor) -> None:
        if payload.shape[::2] != self.payload.shape[::2]:
            raise ValueError(payload.shape)
        self.payload = payload.detach().to(self.payload.dtype, copy=True)
        self.capacity = max(self.capacity, payload.shape[1])

    def clear(self, tokens: int) -> None:
        if tokens < 0:
            raise ValueError(tokens)
        self.payload = self.payload[:, :0]


class TwoBanks:
    """Writes each payload into the other one of two banks, and returns views of the bank written last."""

    def __init__(
        self, capacity: int, hidden: int, levels: int, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.banks = deque(torch.zeros(levels, capacity, hidden, dtype=dtype, device=device) for _ in "ab")

    capacity = property(lambda self: self.banks[0].shape[1])

    def get(self, tokens: int) -> tuple[Tensor, ...]:
        if tokens < 0 or tokens > self.capacity:
            raise OverflowError(tokens)
        return tuple(level.narrow(0, 0, tokens) for level in self.banks[0])

    def set(self, payload: Tensor) -> None:
        bank = self.banks[1]
        if (len(payload), payload.shape[-1]) != (len(bank), bank.shape[-1]) or payload.ndim != 3:
            raise LookupError(payload.shape)
        if payload.shape[1] > self.capacity:
            raise OverflowError(payload.shape)
        bank.zero_().narrow(1, 0, payload.shape[1]).copy_(payload)
        self.banks.rotate()

    def clear(self, tokens: int) -> None:
        if tokens < 0 or tokens > self.capacity:
            raise OverflowError(tokens)
        self.banks[0].zero_()


class ZeroesLate:
    """Zeroes stale rows when they are requested, and has twice the room that it was made with."""

    def __init__(
        self, capacity: int, hidden: int, levels: int, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.store = torch.full((levels, 2 * capacity, hidden), torch.nan, dtype=dtype, device=device)
        self.capacity = 2 * capacity
        self.clean = 0

    def get(self, tokens: int) -> tuple[Tensor, ...]:
        self._check(tokens)
        if tokens > self.clean:
            self.store[:, self.clean : tokens] = 0
            self.clean = tokens
        return tuple(level[:tokens] for level in self.store)

    def set(self, payload: Tensor) -> None:
        if payload.dim() != 3 or payload.shape[::2] != self.store.shape[::2]:
            raise ValueError("shape")
        self._check(payload.shape[1])
        self.store[:, : payload.shape[1]] = payload
        self.clean = payload.shape[1]

    def clear(self, tokens: int) -> None:
        self._check(tokens)
        self.clean = 0

    def _check(self, tokens: int) -> None:
        if tokens < 0:
            raise ValueError("negative")
        if tokens > self.capacity:
            raise MemoryError("room")


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


class KeepsTheOtherMicroBatch:
    """Clears only the rows of a micro-batch where the get before returned just these."""

    def __init__(
        self, capacity: int, hidden: int, levels: int, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.store = torch.zeros(levels, capacity, hidden, dtype=dtype, device=device)
        self.capacity, self.asked, self.held, self.done = capacity, -1, 0, 0

    def get(self, tokens: int) -> tuple[Tensor, ...]:
        self._check(tokens)
        self.asked = tokens
        return tuple(self.store[:, :tokens])

    def set(self, payload: Tensor) -> None:
        if payload.dim() != 3 or payload.shape[::2] != self.store.shape[::2]:
            raise ValueError
        self._check(payload.shape[1])
        self.store.zero_()
        self.store[:, : payload.shape[1]].copy_(payload)
        self.held, self.done, self.asked = payload.shape[1], 0, -1

    def clear(self, tokens: int) -> None:
        self._check(tokens)
        self.done += tokens
        shared = self.asked == tokens and self.done < self.held
        self.store[:, : tokens if shared else None].zero_()
        if not shared:
            self.held = self.done = 0
        self.asked = -1

    def _check(self, tokens: int) -> None:
        if tokens < 0 or tokens > self.capacity:
            raise ValueError


class SkipsEqualPayloads:
    """Holds a copy of the caller's payload, and skips a set of an equal one."""

    def __init__(
        self, capacity: int, hidden: int, levels: int, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.store = torch.zeros(levels, capacity, hidden, dtype=dtype, device=device)
        self.last: Tensor | None = None

    def __getattr__(self, name: str) -> int:
        if name == "capacity":
            return self.store.shape[1]
        raise AttributeError(name)

    def get(self, tokens: int) -> tuple[Tensor, ...]:
        if tokens < 0 or tokens > self.capacity:
            raise ValueError(tokens)
        return tuple(self.store[:, :tokens].unbind(0))

    def set(self, payload: Tensor) -> None:
        if payload.dim() != 3 or payload.shape[::2] != self.store.shape[::2]:
            raise ValueError(payload.shape)
        if payload.shape[1] > self.capacity:
            raise ValueError(payload.shape)
        last = self.last
        alike = last is not None and (last.shape, last.dtype) == (payload.shape, payload.dtype)
        if last is not None and alike and torch.equal(last, payload):
            return
        self.last = payload.detach().clone()
        self.store.zero_()
        self.store[:, : payload.shape[1]] = payload

    def clear(self, tokens: int) -> None:
        if tokens < 0 or tokens > self.capacity:
            raise ValueError(tokens)
        self.last = None
        self.store.zero_()


class FreesIdleStorage:
    """Gives its storage back after a minute without a payload, and makes it anew at the next call."""

    def __init__(
        self, capacity: int, hidden: int, levels: int, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.capacity = capacity
        self.make = functools.partial(torch.zeros, levels, capacity, hidden, dtype=dtype, device=device)
        self.shape = (levels, hidden)
        self.store: Tensor | None = None
        self.since = time.monotonic()
        self.empty = True

    def get(self, tokens: int) -> tuple[Tensor, ...]:
        self._check(tokens)
        return tuple(self._storage()[:, :tokens])

    def set(self, payload: Tensor) -> None:
        if payload.dim() != 3 or (payload.shape[0], payload.shape[2]) != self.shape:
            raise ValueError(payload.shape)
        self._check(payload.shape[1])
        self._storage().zero_()[:, : payload.shape[1]].copy_(payload)
        self.empty = False

    def clear(self, tokens: int) -> None:
        self._check(tokens)
        self._storage().zero_()
        self.empty = True

    def _storage(self) -> Tensor:
        now = time.monotonic()
        if self.store is None or (self.empty and now - self.since > 60):
            self.store = self.make()
        self.since = now
        return self.store

    def _check(self, tokens: int) -> None:
        if tokens < 0 or tokens > self.capacity:
            raise ValueError(tokens)


class SlicesOfAnArena:
    """Takes a region of memory of its class that no other buffer has, while there is room."""

    arenas: ClassVar[dict[tuple[object, ...], tuple[Tensor, int]]] = {}
    room = 1 << 18

    def __init__(
        self, capacity: int, hidden: int, levels: int, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        key, size = (dtype, device, torch.is_inference_mode_enabled()), capacity * hidden * levels
        arena, used = self.arenas.get(key) or (torch.zeros(self.room, dtype=dtype, device=device), 0)
        if used + size > self.room:
            arena, used = torch.zeros(size, dtype=dtype, device=device), 0
        else:
            self.arenas[key] = (arena, used + size)
        self.store = arena[used : used + size].view(levels, capacity, hidden)

    @property
    def capacity(self) -> int:
        return self.store.size(1)

    def get(self, tokens: int) -> tuple[Tensor, ...]:
        if not (0 <= tokens <= self.capacity):
            raise ValueError(tokens)
        return tuple(self.store.select(0, level)[:tokens] for level in range(self.store.size(0)))

    def set(self, payload: Tensor) -> None:
        fits = payload.dim() == 3 and payload.shape[::2] == self.store.shape[::2]
        if not fits or payload.size(1) > self.capacity:
            raise ValueError(payload.shape)
        self.store.zero_()
        self.store[:, : payload.size(1)].copy_(payload)

    def clear(self, tokens: int) -> None:
        if not (0 <= tokens <= self.capacity):
            raise ValueError(tokens)
        self.store.zero_()


class CopiesInAThreadAndWaits:
    """Copies in a thread of its own, and returns when the copy is done."""

    def __init__(
        self, capacity: int, hidden: int, levels: int, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.store = torch.zeros(levels, capacity, hidden, dtype=dtype, device=device)
        self.capacity = capacity

    def get(self, tokens: int) -> tuple[Tensor, ...]:
        if tokens < 0 or tokens > self.capacity:
            raise ValueError(tokens)
        return tuple(self.store[:, :tokens])

    def set(self, payload: Tensor) -> None:
        if payload.dim() != 3 or payload.shape[::2] != self.store.shape[::2]:
            raise ValueError(payload.shape)
        if payload.shape[1] > self.capacity:
            raise ValueError(payload.shape)
        copying = threading.Thread(target=self._copy, args=(payload, torch.is_inference_mode_enabled()))
        copying.start()
        copying.join()

    def _copy(self, payload: Tensor, inference: bool) -> None:
        with torch.inference_mode(inference), torch.no_grad():
            self.store.zero_()
            self.store[:, : payload.shape[1]].copy_(payload)

    def clear(self, tokens: int) -> None:
        if tokens < 0 or tokens > self.capacity:
            raise ValueError(tokens)
        self.store.zero_()


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
