"""Right buffers of other shapes, written in unusual ways before the code that adapts and judges them.

`RIGHT` has an adapter class for each: rows of integers, rows of one number, one row for each request, one
level, a list of levels, fixed storage, methods with other names and arguments, caches and states that no
method clears.  `LIVE_ALONE` are right where no graph reads an address.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from cases.selftest.models.adapters import adapter_class, backwards, not_negative, numbers, whole
from deepstack_harness.contract.protocols import BufferFactory

RIGHT: dict[str, BufferFactory] = {}
"""The adapter of each class of this file, by its name."""
LIVE_ALONE: set[str] = set()
Made = TypeVar("Made", bound=Callable[..., object])


def right(*, live_alone: bool = False, **parts: Any) -> Callable[[Made], Made]:
    """Register a class with the adapter around it."""

    def register(made: Made) -> Made:
        RIGHT[made.__name__] = adapter_class(made, **parts)
        LIVE_ALONE.update({made.__name__} if live_alone else ())
        return made

    return register


@right(**numbers("first", "assign", "forget"))
class RequestSeeds:
    """Seeds (N,) int64, a seed for each request, in storage that refuses to grow."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._seeds = torch.zeros(capacity, dtype=torch.int64)

    def assign(self, seeds: Tensor) -> None:
        if seeds.dim() != 1 or seeds.numel() > self.capacity:
            raise ValueError(f"seeds of shape {tuple(seeds.shape)}")
        self._seeds.zero_()
        self._seeds[: seeds.numel()] = seeds

    def first(self, requests: int) -> Tensor:
        if not 0 <= requests <= self.capacity:
            raise IndexError(requests)
        return self._seeds[:requests]

    def forget(self, requests: int) -> None:
        if requests < 0:
            raise IndexError(requests)
        self._seeds.zero_()


@right(
    make=lambda cls, sizes: cls(sizes.capacity),
    get=lambda made, tokens: tuple(level[:, None] for level in made.view(tokens)),
    put=lambda made, payload: made.write(payload[:, :, 0]),
    clear=lambda made, tokens: (not_negative(tokens), made.zero_()),
    fixed={"dtype": "int64", "levels": 3, "hidden": 1},
)
class Positions:
    """Positions (3, N) int64 of text, height and width in one tensor, as an engine holds those of M-RoPE."""

    def __init__(self, max_tokens: int) -> None:
        self.max_tokens = max_tokens
        self._rows = torch.zeros(3, max_tokens + 1, dtype=torch.long)

    def write(self, positions: Tensor) -> None:
        three, tokens = positions.shape
        if three != 3 or tokens > self.max_tokens:
            raise ValueError(f"positions of shape {tuple(positions.shape)}")
        self._rows[:, :tokens].copy_(positions)
        self._rows[:, tokens:].fill_(0)

    def view(self, tokens: int) -> Tensor:
        if tokens < 0 or tokens > self.max_tokens:
            raise ValueError(tokens)
        return self._rows[:, :tokens]

    def zero_(self) -> None:
        self._rows.mul_(0)


@right(
    make=lambda cls, sizes: cls(sizes.capacity, sizes.hidden, sizes.dtype, sizes.device),
    get=lambda made, tokens: (made.view(tokens),),
    put=lambda made, payload: made.write(**backwards(payload[0])),
    fixed={"levels": 1},
)
class CacheRows:
    """A key cache: rows (N, hidden) are written at their slots, and stay until they are written again."""

    def __init__(self, num_slots: int, head_dim: int, dtype: torch.dtype, device: torch.device) -> None:
        self.cache = torch.empty(num_slots, head_dim, dtype=dtype, device=device).normal_()

    def write(self, values: Tensor, slots: Tensor) -> None:
        if values.dim() != 2 or values.shape[1:] != self.cache.shape[1:]:
            raise ValueError(tuple(values.shape))
        if slots.numel() and int(slots.max()) >= len(self.cache):
            raise IndexError("no such slot")
        self.cache.index_copy_(0, slots, values.to(self.cache.dtype))

    def view(self, slots: int) -> Tensor:
        if not 0 <= slots <= len(self.cache):
            raise IndexError(slots)
        return self.cache[:slots]


@right(
    **{
        **whole(
            "load",
            "store",
            "",
            lambda cls, sizes: cls(sizes.capacity, sizes.levels, sizes.hidden, sizes.dtype, sizes.device),
        ),
        "clear": None,
    }
)
class RecurrentState:
    """Recurrent state of each request, a tensor (N, hidden) for each layer; padded requests keep what was."""

    def __init__(
        self, max_num_reqs: int, num_layers: int, state_size: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.max_num_reqs = max_num_reqs
        self._states = nn.ParameterList(
            nn.Parameter(
                torch.ones(max_num_reqs, state_size, dtype=dtype, device=device), requires_grad=False
            )
            for _ in range(num_layers)
        )

    def load(self, requests: int) -> list[Tensor]:
        if not 0 <= requests <= self.max_num_reqs:
            raise IndexError(requests)
        return [state.data[:requests] for state in self._states]

    def store(self, states: Sequence[Tensor]) -> None:
        if len(states) != len(self._states):
            raise ValueError(f"{len(states)} layers")
        wrong = [new.shape for new in states if new.shape[1:] != self._states[0].shape[1:]]
        if wrong or len(states[0]) > self.max_num_reqs:
            raise ValueError(f"states {wrong}")
        for old, new in zip(self._states, states, strict=True):
            old.data[: len(new)].copy_(new)


@right(
    make=lambda cls, sizes: cls(sizes.capacity, sizes.hidden, dtype=sizes.dtype, device=sizes.device),
    get=lambda made, tokens: (made.fetch(tokens),),
    put=lambda made, payload: made.publish(payload[0]),
    fixed={"levels": 1},
)
class OutputRows:
    """Output rows (N, hidden) of a step, which the next step overwrites and nothing clears."""

    def __init__(self, capacity: int, hidden: int, *, dtype: torch.dtype, device: torch.device) -> None:
        self.capacity = capacity
        self._rows = torch.zeros(capacity, hidden, dtype=dtype, device=device)

    def publish(self, rows: Tensor) -> None:
        if len(rows) > self.capacity or rows.shape != self._rows[: len(rows)].shape:
            raise ValueError(tuple(rows.shape))
        self._rows.narrow(0, 0, len(rows)).copy_(rows)

    def fetch(self, count: int) -> Tensor:
        return self._rows.narrow(0, 0, count)


@right(
    **whole(
        "levels",
        "stage",
        "unstage",
        lambda cls, sizes: cls(sizes.capacity, sizes.hidden, sizes.levels, sizes.dtype),
    )
)
class ListOfLevels:
    """A list of tensors in, a list of tensors out; grows to a power of two, and states so."""

    def __init__(self, capacity: int, hidden: int, levels: int, dtype: torch.dtype) -> None:
        self.capacity, self.generation = capacity, 0
        self._width, self._held = hidden, 0
        self._kept = [torch.zeros(capacity, hidden, dtype=dtype) for _ in range(levels)]
        self._old: list[list[Tensor]] = []

    def stage(self, levels: list[Tensor]) -> None:
        if len(levels) != len(self._kept) or any(level.size(-1) != self._width for level in levels):
            raise ValueError("other levels")
        if any(level.dim() != 2 for level in levels):
            raise ValueError("levels are (N, hidden)")
        count = levels[0].size(0)
        self._grow(count)
        for kept, level in zip(self._kept, levels, strict=True):
            kept[:count] = level
            kept[count : max(count, self._held)] = 0
        self._held = count

    def levels(self, tokens: int) -> list[Tensor]:
        if tokens < 0:
            raise ValueError(tokens)
        self._grow(tokens)
        return [kept[:tokens] for kept in self._kept]

    def unstage(self, tokens: int) -> None:
        if tokens < 0:
            raise ValueError(tokens)
        for kept in self._kept:
            kept.zero_()
        self._held = 0

    def _grow(self, rows: int) -> None:
        if rows <= self.capacity:
            return
        room = 1 << (rows - 1).bit_length()
        grown = [kept.new_zeros(room, self._width) for kept in self._kept]
        for new, old in zip(grown, self._kept, strict=True):
            new[: len(old)] = old
        self._old.append(self._kept)
        self._kept, self.capacity, self.generation = grown, room, self.generation + 1


@right(
    make=lambda cls, sizes: cls(**vars(sizes)),
    get=lambda made, tokens: made.read(tokens).unbind(0),
    put=lambda made, payload: made.write(payload),
    clear=lambda made, tokens: made.erase(tokens),
)
class Stacked:
    """Returns one tensor (levels, P, hidden)."""

    def __init__(self, capacity: int, hidden: int, levels: int, dtype: torch.dtype, device: str) -> None:
        self.capacity = capacity
        self._all = torch.zeros((levels, capacity, hidden), dtype=dtype, device=device)

    def read(self, tokens: int) -> Tensor:
        if tokens < 0 or tokens > self.capacity:
            raise ValueError(tokens)
        return self._all[:, :tokens]

    def write(self, payload: Tensor) -> None:
        levels, tokens, hidden = payload.shape
        if (levels, hidden) != (self._all.size(0), self._all.size(2)) or tokens > self.capacity:
            raise ValueError(tuple(payload.shape))
        self._all[:, :tokens] = payload
        self._all[:, tokens:] = 0

    def erase(self, tokens: int) -> None:
        if tokens < 0:
            raise ValueError(tokens)
        self._all.zero_()


@right(
    make=lambda cls, sizes: cls(**vars(sizes)),
    get=lambda made, tokens: made.read(tokens).unbind(1),
    put=lambda made, payload: made.write(payload.transpose(0, 1)),
    clear=lambda made, tokens: made.erase(tokens),
)
class TokensFirst(Stacked):
    """Holds and returns (P, levels, hidden); takes (N, levels, hidden)."""

    def read(self, tokens: int) -> Tensor:
        return super().read(tokens).transpose(0, 1)

    def write(self, payload: Tensor) -> None:
        if payload.dim() != 3:
            raise ValueError(tuple(payload.shape))
        super().write(payload.transpose(0, 1))


@right(**numbers("as_tensor", "from_tensor", "wipe", dtype="int32"), live_alone=True)
class OverNumpy:
    """Rows (N,) int32 in an array of numpy; each get has a storage of its own over that memory."""

    def __init__(self, size: int) -> None:
        self._array = np.zeros(size, np.int32)

    @property
    def capacity(self) -> int:
        return self._array.size

    def from_tensor(self, tensor: Tensor) -> None:
        if tensor.ndim != 1 or tensor.numel() > self.capacity:
            raise TypeError(tuple(tensor.shape))
        self._array[tensor.numel() :] = 0
        self._array[: tensor.numel()] = tensor.numpy()

    def as_tensor(self, count: int) -> Tensor:
        if not 0 <= count <= self.capacity:
            raise TypeError(count)
        return torch.from_numpy(self._array[:count])

    def wipe(self, count: int) -> None:
        if count < 0:
            raise TypeError(count)
        torch.from_numpy(self._array).zero_()


@right(**numbers("head", "replace", "drop"), live_alone=True)
class GrowsByJoining:
    """Token ids (N,): only what is live is stored, and padding is joined to it at every read."""

    def __init__(self, room: int) -> None:
        self.capacity = room
        self._ids = torch.zeros(0, dtype=torch.int64)

    def replace(self, ids: Tensor) -> None:
        (count,) = ids.shape
        self.capacity = max(self.capacity, count)
        self._ids = ids.clone()

    def head(self, count: int) -> Tensor:
        if count < 0:
            raise ValueError(count)
        return torch.cat([self._ids[:count], torch.zeros(max(0, count - len(self._ids)), dtype=torch.int64)])

    def drop(self, count: int) -> None:
        if count < 0:
            raise ValueError(count)
        self._ids = self._ids[:0]


@right(
    make=lambda cls, sizes: cls(width=sizes.hidden, dtype=sizes.dtype, device=sizes.device),
    get=lambda made, tokens: (made.gather(rows=torch.arange(tokens)),),
    put=lambda made, payload: made.scatter(values=payload[0], rows=torch.arange(len(payload[0]))),
    fixed={"levels": 1, "capacity": 64},
    live_alone=True,
)
class KeywordsOnly:
    """Every argument by its name, read and written by index, which it looks at; one level."""

    def __init__(self, *, width: int, dtype: torch.dtype, device: torch.device) -> None:
        self._pool = torch.zeros(64, width, dtype=dtype, device=device)

    def scatter(self, *, values: Tensor, rows: Tensor) -> None:
        if values.shape != (len(rows), self._pool.size(1)) or (rows >= len(self._pool)).any():
            raise ValueError(tuple(values.shape))
        self._pool[rows] = values.to(self._pool.dtype)

    def gather(self, *, rows: Tensor) -> Tensor:
        if (rows >= len(self._pool)).any():
            raise IndexError(int(rows.max()))
        return self._pool[: len(rows)]


class Hidden(NamedTuple):
    """The levels that get returns."""

    low: Tensor
    middle: Tensor
    high: Tensor


@right(
    **whole("rows", "keep", "lose", lambda cls, sizes: cls(sizes.capacity, sizes.levels)),
    fixed={"dtype": "float32", "hidden": 64},
)
class NamedLevels:
    """Three levels of 64 columns, whatever is requested, returned in a named tuple."""

    def __init__(self, capacity: int, levels: int = 3) -> None:
        self.capacity = capacity
        self._stores = [torch.zeros(capacity, 64) for _ in range(levels)]

    def keep(self, levels: Sequence[Tensor]) -> None:
        if len(levels) != len(self._stores) or {level.shape[1:] for level in levels} != {(64,)}:
            raise ValueError("levels")
        count = len(levels[0])
        if count > self.capacity:
            raise ValueError(count)
        for store, level in zip(self._stores, levels, strict=True):
            store[:count].copy_(level)
            store[count:].zero_()

    def rows(self, count: int) -> tuple[Tensor, ...]:
        if not 0 <= count <= self.capacity:
            raise ValueError(count)
        views = [store[:count] for store in self._stores]
        return Hidden(*views) if len(views) == 3 else tuple(views)

    def lose(self, count: int) -> None:
        if count < 0:
            raise ValueError(count)
        for store in self._stores:
            store.zero_()


@right(**{**numbers("read", "write", "reset", capacity=64), "make": lambda cls, _: cls()})
class AlwaysSixtyFour:
    """64 rows (N,) int64 whatever happens; no argument states it, and what is above it raises."""

    def __init__(self) -> None:
        self._rows = [torch.zeros((), dtype=torch.int64) for _ in range(64)]
        self._all = torch.zeros(64, dtype=torch.int64)

    def write(self, rows: Tensor) -> None:
        if rows.shape != self._all[: len(rows)].shape:
            raise OverflowError(tuple(rows.shape))
        self._all.zero_()
        torch.add(self._all[: len(rows)], rows, out=self._all[: len(rows)])

    def read(self, count: int) -> Tensor:
        if not 0 <= count <= 64:
            raise OverflowError(count)
        return self._all[:count]

    def reset(self, count: int) -> None:
        if count < 0:
            raise OverflowError(count)
        self._all.zero_()


@right(
    **{
        **numbers("now", "next", "end", dtype="int32"),
        "make": lambda cls, sizes: cls(sizes.capacity, sizes.dtype),
    },
    live_alone=True,
)
class TwoInTurns:
    """Block counts (N,) int32 of requests in two storages by turns: what get returned last stays so."""

    def __init__(self, capacity: int, dtype: torch.dtype) -> None:
        self.capacity = capacity
        self._both = torch.zeros(2, capacity, dtype=dtype)
        self._turn = 0

    def next(self, counts: Tensor) -> None:
        (requests,) = counts.shape
        if requests > self.capacity:
            raise ValueError(requests)
        self._turn ^= 1
        self._both[self._turn] = 0
        self._both[self._turn, :requests] = counts

    def now(self, requests: int) -> Tensor:
        if not 0 <= requests <= self.capacity:
            raise ValueError(requests)
        return self._both[self._turn, :requests]

    def end(self, requests: int) -> None:
        if requests < 0:
            raise ValueError(requests)
        self._turn ^= 1
        self._both[self._turn] = 0
