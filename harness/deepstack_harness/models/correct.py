"""Right buffers of many designs, written from the contract's text and not from `ReferenceBuffer`.

Each passes every rule in the regimes that its `regimes` names, `live` or `both`: a harness that refuses one
of them is wrong. First come buffers whose get returns copies, right in live use, where no graph reads an
address; then buffers that grow by copying, and announce the move with a generation where graphs matter;
buffers that allocate late or use storage in turns, right only in live use; and buffers of one size, whose
get returns views of their storage and which refuse to grow.
"""

import torch
from torch import Tensor


class KeepsPayload:
    """A copy of the payload and nothing else, padded at every `get`; it has no capacity to grow beyond."""

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
    """Never zeroes: a mask marks the rows that count, and get puts zeros in place of the others."""

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
        levels, width = len(self._levels), self._levels[0].size(-1)
        if payload.dim() != 3 or (len(payload), payload.size(-1)) != (levels, width):
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
    """Reallocates at every resize to the requested rows, or to N where that is more; announces it."""

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
    """Grows as `Reserve` does, and returns copies: the copy may find no memory after the growth."""

    regimes = "live"

    def get(self, tokens: int) -> tuple[Tensor, ...]:
        self._reserve(tokens)
        return tuple(level[:tokens].clone() for level in self.store)


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
    """The levels of a token next to each other, so that each level has a stride of all levels."""

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
    """Buffer that preserves the rows of other micro-batches when a step clears its own rows."""

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
