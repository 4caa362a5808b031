"""Buffers whose get returns a container that is no tuple, written from the description of those of engines.

`Named` is like vLLM's `IntermediateTensors`: a dataclass whose `__getitem__` takes a name or a slice, so that
an iterator over it never ends.
"""
# ruff: noqa: ANN401  # get returns any type

import weakref
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import repeat
from multiprocessing.shared_memory import SharedMemory
from types import MappingProxyType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from cases.selftest.models.wrong_buffers import Plain


@dataclass
class Named:
    """Tensors by name."""

    tensors: dict[str, Tensor]

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            return self.tensors[key]
        if isinstance(key, slice):
            return type(self)({name: tensor[key] for name, tensor in self.tensors.items()})
        return None

    def __len__(self) -> int:
        return len(self.tensors)


class Lazy(Mapping[str, Tensor]):
    """A mapping of its own, which makes its values when they are read."""

    def __init__(self, levels: tuple[Tensor, ...], tokens: int) -> None:
        self._levels, self._tokens = levels, tokens

    def __getitem__(self, key: str) -> Tensor:
        return self._levels[int(key)][: self._tokens]

    def __iter__(self) -> Iterator[str]:
        return map(str, range(len(self._levels)))

    def __len__(self) -> int:
        return len(self._levels)


def by_name(levels: tuple[Tensor, ...]) -> dict[str, Tensor]:
    return {f"deepstack_input_embeds_{level}": rows for level, rows in enumerate(levels)}


class InADict(Plain):
    def get(self, tokens: int) -> Any:
        return by_name(super().get(tokens))


class InAnOrderedDict(Plain):
    def get(self, tokens: int) -> Any:
        return OrderedDict(by_name(super().get(tokens)))


class InAProxy(Plain):
    def get(self, tokens: int) -> Any:
        return MappingProxyType(by_name(super().get(tokens)))


class InALazyMapping(Plain):
    def get(self, tokens: int) -> Any:
        self.require(tokens)
        return Lazy(tuple(self.rows), tokens)


class InNamed(Plain):
    def get(self, tokens: int) -> Any:
        return Named(by_name(super().get(tokens)))


class SlicesNamed(Plain):
    """Holds one container of all rows, and returns a slice of it."""

    def get(self, tokens: int) -> Any:
        self.require(tokens)
        return Named(by_name(tuple(self.rows)))[:tokens]


class InTensorsOfAList(Plain):
    def get(self, tokens: int) -> Any:
        return SimpleNamespace(tensors=list(super().get(tokens)))


class InSharedMemory(Plain):
    """Rows in memory that other processes could open; the name is gone when it is made."""

    def __init__(
        self, capacity: int, hidden: int, levels: int, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__(0, hidden, levels, dtype=dtype, device=device)
        self.capacity = capacity
        size = max(levels * capacity * hidden * dtype.itemsize, 1)
        memory = SharedMemory(create=True, size=size)
        memory.unlink()
        rows = torch.frombuffer(memory.buf, dtype=torch.uint8)[: levels * capacity * hidden * dtype.itemsize]
        self.rows = list(rows.view(dtype).view(levels, capacity, hidden))
        for level in self.rows:
            level.zero_()
        KEPT[id(self)] = memory
        weakref.finalize(self, KEPT.pop, id(self), None)


KEPT: dict[int, SharedMemory] = {}

RIGHT = (
    InADict, InAnOrderedDict, InAProxy, InALazyMapping, InNamed, SlicesNamed, InTensorsOfAList,
    InSharedMemory,
)  # fmt: skip


class LastLevelIsMissing(Plain):
    def get(self, tokens: int) -> Any:
        return Named(by_name(super().get(tokens)[:-1]))


class ALevelIsNone(Plain):
    def get(self, tokens: int) -> Any:
        return {**by_name(super().get(tokens)), "deepstack_input_embeds_1": None}


class NoneWithoutPayload(Plain):
    def get(self, tokens: int) -> Any:
        answer = Named(by_name(super().get(tokens)))
        return answer if self.count else None


class OtherOrder(Plain):
    def get(self, tokens: int) -> Any:
        return dict(reversed(by_name(super().get(tokens)).items()))


class OneRowLess(Plain):
    def get(self, tokens: int) -> Any:
        answer = Named(by_name(super().get(tokens)))
        return answer[: max(tokens - 1, 0)]


class OldRows(InNamed):
    def write(self, payload: Tensor) -> None:
        for rows, level in zip(self.rows, payload, strict=True):
            rows[: payload.size(1)].copy_(level)


class ClearsNothing(InADict):
    def clear(self, tokens: int) -> None:
        self.require(tokens)


class MovesInSet(SlicesNamed):
    def write(self, payload: Tensor) -> None:
        self.rows = [rows.clone() for rows in self.rows]
        super().write(payload)


WRONG = {
    LastLevelIsMissing: "R1", ALevelIsNone: "R1", NoneWithoutPayload: "R1", OtherOrder: "R2",
    OneRowLess: "R2", OldRows: "R3", ClearsNothing: "R5", MovesInSet: "R6",
}  # fmt: skip


class AGenerator(Plain):
    def get(self, tokens: int) -> Any:
        return (rows for rows in super().get(tokens))


class WithoutEnd(Plain):
    def get(self, tokens: int) -> Any:
        return repeat(super().get(tokens)[0])


class ASet(Plain):
    def get(self, tokens: int) -> Any:
        return set(super().get(tokens))


class NamedWithoutTensors(Plain):
    def get(self, tokens: int) -> Any:
        answer = Named(by_name(super().get(tokens)))
        return type("Levels", (), {"__getitem__": lambda _, key: answer[key], "__len__": lambda _: 3})()


class OnlyWithPayload(Plain):
    """A tuple while nothing is set."""

    def get(self, tokens: int) -> Any:
        return iter(super().get(tokens)) if self.count else super().get(tokens)


class TensorsIsAMethod(Plain):
    def get(self, tokens: int) -> Any:
        answer = super().get(tokens)
        return SimpleNamespace(tensors=lambda: answer)


REFUSED = (AGenerator, WithoutEnd, ASet, NamedWithoutTensors, OnlyWithPayload, TensorsIsAMethod)


class Endless(Mapping[int, Tensor]):
    """A mapping that has no last key."""

    def __init__(self, rows: Tensor) -> None:
        self._rows = rows

    def __getitem__(self, key: int) -> Tensor:
        return self._rows

    def __iter__(self) -> Iterator[int]:
        return repeat(0)

    def __len__(self) -> int:
        return 3


class InAnEndlessMapping(Plain):
    def get(self, tokens: int) -> Any:
        return Endless(super().get(tokens)[0])
