"""Wrong buffers, written from the text of the contract before the inputs and oracles that judge them.

Each class has one fault, and `BREAKS` names the rule that has to catch it.  Classes are made with
(capacity, hidden, levels, *, dtype, device), as `check MODULE:CLASS` makes them.
"""
# ruff: noqa: ANN401  # wrong buffers return any type

import contextlib
import ctypes
import threading
import time
from collections import deque, namedtuple
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

BREAKS: dict[str, str] = {}
"""The rule that each class of this file breaks, by the name of the class."""
Kind = TypeVar("Kind", bound=type)


def breaks(rule: str) -> Callable[[Kind], Kind]:
    """Register a class under the rule that it breaks."""

    def register(kind: Kind) -> Kind:
        BREAKS[kind.__name__] = rule
        return kind

    return register


class Plain:
    """A right buffer: one tensor (capacity, hidden) per level, which refuses what it has no room for."""

    refusal: ClassVar[type[Exception]] = ValueError

    def __init__(
        self, capacity: int, hidden: int, levels: int, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.capacity = capacity
        self.hidden = hidden
        self.levels = levels
        self.rows = [torch.zeros(capacity, hidden, dtype=dtype, device=device) for _ in range(levels)]
        self.count = 0
        self.made()

    def made(self) -> None:
        """Finish the constructor."""

    def get(self, tokens: int) -> Any:
        self.require(tokens)
        return tuple(rows[:tokens] for rows in self.rows)

    def set(self, payload: Tensor) -> None:
        self.fit(payload)
        self.require(payload.size(1))
        self.write(payload)

    def clear(self, tokens: int) -> None:
        self.require(tokens)
        self.forget()

    def require(self, tokens: int) -> None:
        if not 0 <= tokens <= self.capacity:
            raise self.refusal(f"{tokens} tokens do not fit into {self.capacity} rows")

    def fit(self, payload: Tensor) -> None:
        if payload.dim() != 3 or payload.size(0) != self.levels or payload.size(2) != self.hidden:
            raise self.refusal(f"a payload of shape {tuple(payload.shape)}")

    def write(self, payload: Tensor) -> None:
        self.forget()
        self.count = payload.size(1)
        for rows, level in zip(self.rows, payload, strict=True):
            rows[: self.count].copy_(level)

    def forget(self) -> None:
        for rows in self.rows:
            rows.zero_()
        self.count = 0


class Growing(Plain):
    """A right buffer that grows."""

    def require(self, tokens: int) -> None:
        if tokens < 0:
            raise ValueError(f"{tokens} tokens")
        if tokens > self.capacity:
            self.move(tokens)

    def resize(self, tokens: int) -> None:
        if tokens < self.count:
            raise ValueError(f"{tokens} rows would cut a payload of {self.count}")
        self.move(tokens)

    def move(self, tokens: int) -> None:
        moved = [rows.new_zeros(tokens, self.hidden) for rows in self.rows]
        for new, old in zip(moved, self.rows, strict=True):
            new[: self.count].copy_(old[: self.count])
        self.rows, self.capacity = moved, tokens


@breaks("R2")
class IgnoresTheStrideOfColumns(Plain):
    """Reads the columns of a row one after the other, whatever their stride is."""

    def write(self, payload: Tensor) -> None:
        if payload.stride(2) > 1 and payload.dtype == self.rows[0].dtype:
            payload = payload.as_strided(payload.shape, (payload.stride(0), payload.stride(1), 1))
        super().write(payload)


@breaks("R2")
class TakesAnExpandedLevelOnce(Plain):
    """Copies what lies in the payload's memory: of expanded levels there is one."""

    def write(self, payload: Tensor) -> None:
        self.forget()
        self.count = payload.size(1)
        stored = 1 if payload.stride(0) == 0 else self.levels
        for index in range(stored):
            self.rows[index][: self.count].copy_(payload[index])


@breaks("R2")
class IgnoresTheOffset(Plain):
    """Reads float32 payloads from the begin of their storage, not from their offset."""

    def write(self, payload: Tensor) -> None:
        if payload.storage_offset() and payload.dtype == self.rows[0].dtype:
            payload = torch.as_strided(payload, payload.shape, payload.stride(), 0)
        super().write(payload)


@breaks("R8")
class ComparesProducts(Plain):
    """Compares levels times hidden, so that two wrong sizes cancel."""

    def fit(self, payload: Tensor) -> None:
        if payload.size(0) * payload.size(2) != self.levels * self.hidden:
            raise ValueError("wrong sizes")

    def write(self, payload: Tensor) -> None:
        super().write(payload.reshape(self.levels, -1, self.hidden))


@breaks("R8")
class ReshapesAnything(Plain):
    """Takes any payload whose elements can be arranged as (levels, N, hidden): flat or swapped ones too."""

    def set(self, payload: Tensor) -> None:
        super().set(payload.reshape(self.levels, -1, self.hidden))


@breaks("R8")
class TakesSwappedSizes(Plain):
    """Takes (N, levels, hidden) as well, as some engines lay it out."""

    def set(self, payload: Tensor) -> None:
        if payload.dim() == 3 and payload.size(0) != self.levels and payload.size(1) == self.levels:
            payload = payload.transpose(0, 1)
        super().set(payload)


@breaks("R2")
class ClampsTheCast(Plain):
    """Clamps float64 values to the range of its dtype, where the cast gives infinity."""

    def write(self, payload: Tensor) -> None:
        limit = torch.finfo(self.rows[0].dtype).max
        if payload.dtype == torch.float64:
            payload = torch.where(payload.isfinite(), payload.clamp(-limit, limit), payload)
        super().write(payload)


@breaks("R2")
class CastsThroughFloat32(Plain):
    """Casts to float32 first, which is one rounding too many for a float64 buffer."""

    def write(self, payload: Tensor) -> None:
        super().write(payload.float())


@breaks("R2")
class FlushesSubnormals(Plain):
    """Sets values below the smallest normal number to zero."""

    def write(self, payload: Tensor) -> None:
        super().write(torch.where(payload.abs() < torch.finfo(payload.dtype).tiny, 0.0, payload))


@breaks("R5")
class MultipliesByZero(Plain):
    """Clears by a product, which leaves NaN and turns infinity into it."""

    def clear(self, tokens: int) -> None:
        self.require(tokens)
        for rows in self.rows:
            rows.mul_(0)
        self.count = 0


@breaks("R3")
class MasksWhatIsBehind(Plain):
    """Multiplies rows after a new payload by zero, which leaves the NaN of the replaced one."""

    def write(self, payload: Tensor) -> None:
        self.count = payload.size(1)
        for rows, level in zip(self.rows, payload, strict=True):
            rows[: self.count].copy_(level)
            rows[self.count :].mul_(0)


def kind_of(buffer: Plain) -> tuple[object, ...]:
    """Return what two buffers have in common that could share storage."""
    like = buffer.rows[0]
    inference = torch.is_inference_mode_enabled()
    return (buffer.capacity, buffer.hidden, buffer.levels, like.dtype, like.device, inference)


@breaks("R2")
class SharesStorage(Plain):
    """Holds its storage per size in the class, so that two buffers of one size share it."""

    storage: ClassVar[dict[tuple[object, ...], list[Tensor]]] = {}

    def made(self) -> None:
        self.rows = self.storage.setdefault(kind_of(self), self.rows)
        self.forget()


@breaks("R2")
class ReusesStorage(Plain):
    """Takes the storage of a buffer that was collected, with the rows that it held."""

    free: ClassVar[dict[tuple[object, ...], deque[list[Tensor]]]] = {}

    def made(self) -> None:
        self.key = kind_of(self)
        if self.free.get(self.key):
            self.rows = self.free[self.key].pop()

    def __del__(self) -> None:
        self.free.setdefault(self.key, deque()).append(self.rows)


@breaks("R3")
class CopiesInAThread(Plain):
    """Copies the payload in a thread that get waits for: by then the caller has written over it."""

    worker: threading.Thread | None = None

    def set(self, payload: Tensor) -> None:
        self.fit(payload)
        self.require(payload.size(1))
        self.wait()
        self.worker = threading.Thread(target=self.later, args=(payload, torch.is_inference_mode_enabled()))
        self.worker.start()

    def later(self, payload: Tensor, inference: bool) -> None:
        time.sleep(0.003)
        with torch.inference_mode(inference), torch.no_grad():
            self.write(payload)

    def wait(self) -> None:
        if self.worker is not None:
            self.worker.join()
            self.worker = None

    def get(self, tokens: int) -> Any:
        self.wait()
        return super().get(tokens)

    def clear(self, tokens: int) -> None:
        self.wait()
        super().clear(tokens)


@breaks("R11")
class AnswersItsParameters(Plain):
    """Returns the parameters themselves at full capacity, and tensors below."""

    def made(self) -> None:
        self.rows = [nn.Parameter(rows, requires_grad=False) for rows in self.rows]

    def get(self, tokens: int) -> Any:
        self.require(tokens)
        return tuple(rows if tokens == self.capacity else rows[:tokens] for rows in self.rows)


class Answer(tuple[Tensor, ...]):
    """A tuple of another class that has the same name."""

    __slots__ = ()


Answer.__name__ = Answer.__qualname__ = "tuple"
Answer.__module__ = "builtins"


@breaks("R11")
class AnswersATupleOfItsOwn(Plain):
    """Returns a subclass of tuple that is called tuple while a payload is set, and a tuple without one."""

    def get(self, tokens: int) -> Any:
        answer = super().get(tokens)
        return Answer(answer) if self.count else answer


@breaks("R1")
class AnswersOneTensor(Plain):
    """Returns one tensor (levels, P, hidden), over which one can iterate as over a tuple."""

    def get(self, tokens: int) -> Any:
        return torch.stack(super().get(tokens))


@breaks("R1")
class UnpacksOneLevel(Plain):
    """Returns the tensor itself where it has one level."""

    def get(self, tokens: int) -> Any:
        answer = super().get(tokens)
        return answer[0] if len(answer) == 1 else answer


@breaks("R11")
class SpreadsASingleRow(Plain):
    """Returns one row from a wider tensor, so that its columns have another stride."""

    def get(self, tokens: int) -> Any:
        answer = super().get(tokens)
        return tuple(rows.repeat_interleave(2, 1)[:, ::2] if rows.size(0) == 1 else rows for rows in answer)


@breaks("R11")
class TurnsNoRows(Plain):
    """Returns no rows from a fresh tensor of other strides while there is a payload."""

    def get(self, tokens: int) -> Any:
        answer = super().get(tokens)
        turned = not tokens and self.count
        return tuple(rows.new_empty(self.hidden, 2).t()[:0] for rows in answer) if turned else answer


@breaks("R3")
class WritesTheCallersTensor(Plain):
    """Writes the caller's tensor with what it holds: its bytes stay, its version does not."""

    def write(self, payload: Tensor) -> None:
        super().write(payload)
        with contextlib.suppress(RuntimeError):  # overlapping rows cannot be written
            payload.mul_(1)


@breaks("R3")
class DetachesTheCaller(Plain):
    """Turns off the gradient of the caller's tensor."""

    def write(self, payload: Tensor) -> None:
        super().write(payload)
        with contextlib.suppress(RuntimeError):  # a view cannot
            payload.requires_grad_(False)


@breaks("R3")
class TurnsTheCallersTensor(Plain):
    """Swaps two dimensions of the caller's tensor in place."""

    def write(self, payload: Tensor) -> None:
        super().write(payload)
        with contextlib.suppress(RuntimeError):
            payload.transpose_(0, 1)


@breaks("R2")
class ExpiresByTheClock(Plain):
    """Returns zeros for a payload that was set more than ten minutes ago."""

    since = 0.0

    def write(self, payload: Tensor) -> None:
        super().write(payload)
        self.since = time.monotonic()

    def get(self, tokens: int) -> Any:
        if time.monotonic() - self.since > 600:
            self.forget()
        return super().get(tokens)


@breaks("R2")
class WrapsACounter(Plain):
    """Counts its calls in 11 bits, and takes the first one for a fresh start."""

    calls = 0

    def get(self, tokens: int) -> Any:
        self.calls = (self.calls + 1) % 2048
        if not self.calls:
            self.forget()
        return super().get(tokens)


@breaks("R2")
class CountsIn16Bits(Plain):
    """Holds the count of rows in a 16-bit number, beyond which rows are lost."""

    def write(self, payload: Tensor) -> None:
        super().write(payload)
        held = ctypes.c_int16(payload.size(1)).value % 32768
        for rows in self.rows:
            rows[held:].zero_()


@breaks("R2")
class CopiesBlocksOfColumns(Plain):
    """Copies blocks of 32 columns, and leaves those of a last block that is not full."""

    def write(self, payload: Tensor) -> None:
        super().write(payload)
        whole = self.hidden // 32 * 32
        for rows in self.rows:
            rows[:, whole:].zero_()


@breaks("R2")
class HasFourLevels(Plain):
    """Copies four levels at most."""

    def write(self, payload: Tensor) -> None:
        super().write(payload)
        for rows in self.rows[4:]:
            rows.zero_()


@breaks("R2")
class HasAWidestRow(Plain):
    """Copies 4096 columns at most."""

    def write(self, payload: Tensor) -> None:
        super().write(payload)
        for rows in self.rows:
            rows[:, 4096:].zero_()


@breaks("R2")
class TakesBitsOfIntegers(Plain):
    """Takes int32 payloads, and copies their bits where their values belong."""

    def write(self, payload: Tensor) -> None:
        same = payload.element_size() == self.rows[0].element_size()
        if not payload.is_floating_point() and same:
            payload = payload.view(self.rows[0].dtype)
        super().write(payload)


@breaks("R3")
class SkipsTheSameTensor(Plain):
    """Skips the copy where the caller's tensor has the address and shape of the last one."""

    last: tuple[object, ...] = ()

    def write(self, payload: Tensor) -> None:
        key = (payload.data_ptr(), payload.shape, payload.stride(), payload.dtype)
        if key != self.last or not self.count:
            super().write(payload)
        self.last = key


@breaks("R3")
class SkipsEqualSums(Plain):
    """Skips the copy of a payload with the sum of the last one."""

    total: tuple[object, ...] = ()

    def write(self, payload: Tensor) -> None:
        total = (tuple(payload.shape), float(payload.double().sum()))
        if total != self.total or not self.count:
            super().write(payload)
        self.total = total


@breaks("R3")
class ForgetsWhatIsAboveTheFirstCapacity(Growing):
    """Zeroes the rows after a payload up to the capacity that it was made with."""

    def forget(self) -> None:
        self.made_with = getattr(self, "made_with", self.capacity)
        for rows in self.rows:
            rows[: self.made_with].zero_()
        self.count = 0


@breaks("R2")
class RefusesNothingAtFirst(Plain):
    """Takes an empty payload only after another one."""

    def write(self, payload: Tensor) -> None:
        self.written = getattr(self, "written", False) or payload.size(1) > 0
        if not self.written:
            raise ValueError("an empty payload")
        super().write(payload)


@breaks("R4")
class ForgetsAtItsOwnSize(Plain):
    """Makes itself anew where it is resized to the capacity that it has."""

    def resize(self, tokens: int) -> None:
        if tokens != self.capacity:
            raise ValueError(tokens)
        self.clear(tokens)


@breaks("R4")
class RoundsGrowthDown(Growing):
    """Grows to whole blocks of 16 rows, rounded down, but at least one more."""

    def move(self, tokens: int) -> None:
        rounded = max(tokens // 16 * 16, self.capacity + 1, self.count)
        super().move(rounded if tokens > 2 * self.capacity + 4 else tokens)

    def get(self, tokens: int) -> Any:
        self.require(tokens)
        return tuple(rows[:tokens] for rows in self.rows)


@breaks("R4")
class RaisesItsCapacityFirst(Growing):
    """Refuses to grow fourfold, but only after it has stated the new capacity."""

    def move(self, tokens: int) -> None:
        if tokens > 4 * self.rows[0].size(0):
            self.capacity = tokens
            raise MemoryError(f"{tokens} rows")
        super().move(tokens)


@breaks("R4")
class ForgetsBeforeItRefuses(Plain):
    """Forgets the payload, and then refuses the next one for its size."""

    def set(self, payload: Tensor) -> None:
        self.fit(payload)
        self.forget()
        super().set(payload)


@breaks("R8")
class ForgetsBeforeItChecks(Plain):
    """Forgets the payload, and then refuses the next one for having both sizes wrong."""

    def fit(self, payload: Tensor) -> None:
        if payload.dim() == 3 and payload.size(0) != self.levels and payload.size(2) != self.hidden:
            self.forget()
        super().fit(payload)


@breaks("R5")
class IgnoresAClearOfNothing(Plain):
    """Takes clear(0) for a step without a payload."""

    def clear(self, tokens: int) -> None:
        if tokens:
            super().clear(tokens)


@breaks("R5")
class ClearsTheFirstThousand(Plain):
    """Zeroes 1024 rows at most, and then forgets how many there were."""

    def clear(self, tokens: int) -> None:
        self.require(tokens)
        for rows in self.rows:
            rows[:1024].zero_()
        self.count = 0


@breaks("R3")
class KeepsThePayloadOfAnEmptySet(Plain):
    """Takes a payload of no rows for no payload."""

    def write(self, payload: Tensor) -> None:
        if payload.size(1):
            super().write(payload)


@breaks("R7")
class FollowsTheFirstPayload(Plain):
    """Takes the dtype of a float64 payload."""

    def write(self, payload: Tensor) -> None:
        if payload.dtype == torch.float64:
            self.rows = [rows.double() for rows in self.rows]
        super().write(payload)


@breaks("R11")
class NamesItsLevels(Plain):
    """Returns a named tuple after the first hundred calls."""

    calls = 0

    def get(self, tokens: int) -> Any:
        answer = super().get(tokens)
        self.calls += 1
        if self.calls <= 100:
            return answer
        return namedtuple("Levels", [f"level{index}" for index in range(self.levels)])(*answer)  # noqa: PYI024
