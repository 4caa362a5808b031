"""Wrong buffers of other shapes, each with one fault, written before the code that adapts and judges them.

`WRONG` has, for each class, the rule that has to catch it and an adapter class.
"""

from collections.abc import Callable, Sequence
from typing import ClassVar, NamedTuple, TypeVar

import torch
from torch import Tensor

from cases.selftest.models.adapters import Parts, adapter_class, backwards, not_negative, numbers, whole
from deepstack_harness.contract.protocols import BufferFactory


class Wrong(NamedTuple):
    """The rule that a class breaks, its adapter, and the regime in which that shows."""

    rule: str
    adapter: BufferFactory
    regime: str


WRONG: dict[str, Wrong] = {}
Made = TypeVar("Made", bound=type)
_NUMBERS = numbers("read", "write", "reset")
_ROWS: Parts = {
    "make": lambda cls, sizes: cls(sizes.capacity, sizes.hidden, sizes.dtype, sizes.device),
    "get": lambda made, tokens: (made.read(tokens),),
    "put": lambda made, payload: made.write(payload[0]),
    "clear": lambda made, tokens: made.reset(tokens),
    "fixed": {"levels": 1},
}
_SLOTS = {**_ROWS, "clear": None, "put": lambda made, payload: made.write(**backwards(payload[0]))}
_LIST = whole(
    "read", "write", "reset", lambda cls, sizes: cls(sizes.capacity, sizes.hidden, sizes.levels, sizes.dtype)
)


def wrong(rule: str, parts: Parts = _NUMBERS, regime: str = "live") -> Callable[[Made], Made]:
    """Register a class under the rule that it breaks."""

    def register(made: Made) -> Made:
        WRONG[made.__name__] = Wrong(rule, adapter_class(made, **parts), regime)
        return made

    return register


class Numbers:
    """A right buffer of numbers (N,) in fixed storage."""

    kind: ClassVar[torch.dtype] = torch.int64

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.store = torch.zeros(capacity, dtype=self.kind)
        self.held = 0

    def check(self, numbers: Tensor) -> int:
        if numbers.dim() != 1 or len(numbers) > self.capacity:
            raise ValueError(tuple(numbers.shape))
        return len(numbers)

    def write(self, numbers: Tensor) -> None:
        self.held = self.check(numbers)
        self.store[: self.held] = numbers
        self.store[self.held :] = 0

    def read(self, count: int) -> Tensor:
        if not 0 <= count <= self.capacity:
            raise ValueError(count)
        return self.store[:count]

    def reset(self, count: int) -> None:
        if count < 0:
            raise ValueError(count)
        self.store.zero_()
        self.held = 0


class Rows:
    """A right buffer of rows (N, hidden), one level, in fixed storage."""

    def __init__(self, capacity: int, hidden: int, dtype: torch.dtype, device: torch.device) -> None:
        self.capacity = capacity
        self.store = torch.zeros(capacity, hidden, dtype=dtype, device=device)

    def check(self, rows: Tensor) -> int:
        if rows.dim() != 2 or rows.size(1) != self.store.size(1) or len(rows) > self.capacity:
            raise ValueError(tuple(rows.shape))
        return len(rows)

    def write(self, rows: Tensor) -> None:
        count = self.check(rows)
        self.store[:count] = rows
        self.store[count:] = 0

    def read(self, count: int) -> Tensor:
        if not 0 <= count <= self.capacity:
            raise ValueError(count)
        return self.store[:count]

    def reset(self, count: int) -> None:
        if count < 0:
            raise ValueError(count)
        self.store.zero_()


@wrong("R3")
class StaleNumbers(Numbers):
    """Leaves the numbers of a longer payload after those of a shorter one."""

    def write(self, numbers: Tensor) -> None:
        self.held = self.check(numbers)
        self.store[: self.held] = numbers


@wrong("R5")
class LeavesTheLastRequest(Numbers):
    """Clears all requests but the last one that was set."""

    def reset(self, count: int) -> None:
        last = self.store[max(0, self.held - 1)].clone()
        held = self.held
        super().reset(count)
        if held:
            self.store[held - 1] = last


@wrong("R2")
class Narrow(Numbers):
    """Stores int64 in 32 bits, and returns int64."""

    def write(self, numbers: Tensor) -> None:
        super().write(numbers.to(torch.int32))


@wrong("R7")
class AnswersNarrow(Numbers):
    """Returns int32 where int64 is due."""

    kind = torch.int32


@wrong("R2")
class ThroughFloat(Numbers):
    """Stores integers in float32, which rounds those above 2**24, and returns them as int64."""

    def write(self, numbers: Tensor) -> None:
        super().write(numbers.float().long())


@wrong("R1")
class NoneWhenEmpty(Numbers):
    """Returns None until something is set."""

    def read(self, count: int) -> Tensor:
        if not self.held:
            return None  # type: ignore[return-value]
        return super().read(count)


@wrong("R4", {**numbers("read", "write", "reset", capacity=64), "make": lambda cls, _: cls()})
class Truncates:
    """Has 64 rows, and drops what is above them."""

    def __init__(self) -> None:
        self.store = torch.zeros(64, dtype=torch.int64)

    def write(self, numbers: Tensor) -> None:
        (count,) = numbers[:64].shape
        self.store[:count] = numbers[:64]
        self.store[count:] = 0

    def read(self, count: int) -> Tensor:
        if count < 0:
            raise ValueError(count)
        return self.store[:count]

    def reset(self, count: int) -> None:
        if count < 0:
            raise ValueError(count)
        self.store.zero_()


@wrong("R4")
class ClearsBeforeItRefuses(Numbers):
    """Refuses what is above the capacity after it has cleared what was there."""

    def write(self, numbers: Tensor) -> None:
        if len(numbers) > self.capacity:
            self.store.zero_()
        super().write(numbers)


@wrong("R3", _ROWS)
class KeepsTheTensor(Rows):
    """Holds the tensor of the caller where it fills the buffer."""

    def write(self, rows: Tensor) -> None:
        if self.check(rows) == self.capacity and rows.dtype == self.store.dtype:
            self.store = rows
        else:
            super().write(rows)


@wrong("R2")
class AnswersOneMore(Numbers):
    """Returns a row more than was requested, up to the capacity."""

    def read(self, count: int) -> Tensor:
        super().read(count)
        return self.store[: count + 1]


@wrong("R2")
class PadsWithMinusOne(Numbers):
    """Pads with -1, as block tables do, where rows after N are due as zeros."""

    def write(self, numbers: Tensor) -> None:
        super().write(numbers)
        self.store[self.held :] = -1


@wrong("R2", _SLOTS)
class IgnoresItsSlots(Rows):
    """Writes rows from row 0 on, whatever slots they belong to."""

    def write(self, values: Tensor, slots: Tensor) -> None:  # type: ignore[override]
        count = self.check(values)
        self.store[:count] = values


@wrong("R2", _SLOTS)
class AddsToItsSlots(Rows):
    """Adds rows to what their slots hold."""

    def write(self, values: Tensor, slots: Tensor) -> None:  # type: ignore[override]
        self.check(values)
        self.store.index_add_(0, slots, values.to(self.store.dtype))


@wrong("R2", _SLOTS)
class NextSlot(Rows):
    """Writes each row one slot too far, and the last one into the first."""

    def write(self, values: Tensor, slots: Tensor) -> None:  # type: ignore[override]
        self.check(values)
        self.store[(slots + 1) % self.capacity] = values.to(self.store.dtype)


class Layers:
    """A right buffer of a list of levels."""

    def __init__(self, capacity: int, hidden: int, levels: int, dtype: torch.dtype) -> None:
        self.capacity = capacity
        self.store = torch.zeros(levels, capacity, hidden, dtype=dtype)

    def write(self, levels: Sequence[Tensor]) -> None:
        wanted = (self.store.size(0), len(levels[0]), self.store.size(2)) if levels else None
        if not levels or len(levels) != len(self.store) or len(levels[0]) > self.capacity:
            raise ValueError("levels")
        stacked = torch.stack(list(levels))
        if stacked.shape != wanted:
            raise ValueError("levels")
        self.store[:, : len(levels[0])] = stacked
        self.store[:, len(levels[0]) :] = 0

    def read(self, count: int) -> Sequence[Tensor]:
        if not 0 <= count <= self.capacity:
            raise ValueError(count)
        return list(self.store[:, :count])

    def reset(self, count: int) -> None:
        if count < 0:
            raise ValueError(count)
        self.store.zero_()


@wrong("R2", _LIST)
class ForgetsTheLastLevel(Layers):
    """Writes all levels but the last."""

    def write(self, levels: Sequence[Tensor]) -> None:
        last = self.store[-1].clone()
        super().write(levels)
        if len(levels) > 1:
            self.store[-1] = last


@wrong("R11", _LIST)
class TupleWhenSet(Layers):
    """Returns a list until something is set, and then a tuple."""

    full = False

    def write(self, levels: Sequence[Tensor]) -> None:
        super().write(levels)
        self.full = True

    def read(self, count: int) -> Sequence[Tensor]:
        answer = super().read(count)
        return tuple(answer) if self.full else answer


@wrong(
    "R2",
    {
        **_LIST,
        "get": lambda made, tokens: made.read(tokens).unbind(0),
        "put": lambda made, payload: made.write(payload),
    },
)
class TurnsTheLevels(Layers):
    """Returns one tensor with its levels in another order."""

    def write(self, levels: Tensor) -> None:  # type: ignore[override]
        if levels.dim() != 3:
            raise ValueError("levels")
        super().write(list(levels))

    def read(self, count: int) -> Tensor:  # type: ignore[override]
        super().read(count)
        return self.store.flip(0)[:, :count]


@wrong("R5", {**_NUMBERS, "clear": lambda made, tokens: (not_negative(tokens), made.reset())})
class ClearsNothing(Numbers):
    """A reset without arguments that only resets a counter."""

    def reset(self) -> None:  # type: ignore[override]
        self.held = 0


@wrong("R3", {**_ROWS, "clear": None})
class SkipsEqualSizes(Rows):
    """Leaves the earlier rows where as many are written again; nothing clears it."""

    last = -1

    def write(self, rows: Tensor) -> None:
        count = self.check(rows)
        if count != self.last:
            self.store[:count] = rows
        self.last = count


@wrong("R6", _NUMBERS, "captured")
class MovesWithEverySet(Numbers):
    """Makes new storage at every write, and announces nothing."""

    def write(self, numbers: Tensor) -> None:
        count = self.check(numbers)
        self.store = torch.cat([numbers, torch.zeros(self.capacity - count, dtype=self.kind)])


@wrong("R6", _ROWS, "captured")
class ClearsByNewStorage(Rows):
    """Clears by making new storage, also while it is captured."""

    def reset(self, count: int) -> None:
        if count < 0:
            raise ValueError(count)
        self.store = torch.zeros_like(self.store)


@wrong("R8", _ROWS)
class Broadcasts(Rows):
    """Takes a payload of one column for all columns."""

    def check(self, rows: Tensor) -> int:
        if rows.dim() != 2 or rows.size(1) not in (1, self.store.size(1)) or len(rows) > self.capacity:
            raise ValueError(tuple(rows.shape))
        return len(rows)


@wrong("R2", numbers("read", "write", "reset", dtype="uint8"))
class Saturates(Numbers):
    """Stores bytes up to 127."""

    kind = torch.uint8

    def write(self, numbers: Tensor) -> None:
        super().write(numbers.clamp(max=127))


@wrong("R8")
class FlattensAnything(Numbers):
    """Takes a payload of any shape, end to end."""

    def write(self, numbers: Tensor) -> None:
        super().write(numbers.reshape(-1))


@wrong("R2")
class SharedByAll(Numbers):
    """Holds the storage in the class, so that two buffers of one size share it."""

    shared: ClassVar[dict[int, Tensor]] = {}

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self.store = self.shared.setdefault(capacity, self.store)


@wrong("R3")
class SortsForTheCaller(Numbers):
    """Writes over the tensor of its caller."""

    def write(self, numbers: Tensor) -> None:
        super().write(numbers)
        numbers.neg_()


@wrong("R8")
class TakesNegativeCounts(Numbers):
    """Treats a negative count as a slice does."""

    def read(self, count: int) -> Tensor:
        if count > self.capacity:
            raise ValueError(count)
        return self.store[:count]
