"""Adapter classes of tests, made of what differs: how an object is made, read, written and cleared."""
# ruff: noqa: ANN401  # objects of any class

from collections.abc import Callable, Mapping
from types import MappingProxyType, SimpleNamespace
from typing import Any, cast

import torch
from torch import Tensor

from deepstack_harness.contract.protocols import BufferFactory

Parts = Mapping[str, Any]
"""The arguments of `adapter_class` after the first."""


def adapter_class(
    made_of: object,
    make: Callable[[Any, Any], object],
    get: Callable[[Any, int], object],
    put: Callable[[Any, Tensor], object],
    clear: Callable[[Any, int], object] | None = None,
    fixed: Mapping[str, object] = MappingProxyType({}),
) -> BufferFactory:
    """Return the adapter class of a class or function; without `clear` rows stay until the next write."""

    class Adapter:
        def __init__(self, capacity: int, hidden: int, levels: int, **where: Any) -> None:
            sizes = SimpleNamespace(capacity=capacity, hidden=hidden, levels=levels, **where)
            self.made, self.rows = make(made_of, sizes), capacity

        def __getattr__(self, name: str) -> object:
            if name != "generation":
                raise AttributeError(name)
            return getattr(self.made, name)

        @property
        def capacity(self) -> int:
            return getattr(self.made, "capacity", self.rows)

        def get(self, tokens: int) -> object:
            return get(self.made, tokens)

        def set(self, payload: Tensor) -> None:
            put(self.made, payload)

        def clear(self, tokens: int) -> None:
            if clear:
                clear(self.made, tokens)

    vars_of: Any = Adapter
    vars_of.fixed = {**fixed} if clear else {**fixed, "cleared": False}
    return cast(BufferFactory, Adapter)


NUMBERS: dict[str, object] = {"dtype": "int64", "levels": 1, "hidden": 1}


def numbers(get: str, put: str, clear: str, **fixed: object) -> Parts:
    """Return the parts of an adapter of numbers (N,), by the names of methods, made with a capacity."""

    def as_level(made: Any, tokens: int) -> object:
        rows = getattr(made, get)(tokens)
        return None if rows is None else (rows[:, None],)

    return {
        "make": lambda cls, sizes: cls(sizes.capacity),
        "get": as_level,
        "put": lambda made, payload: getattr(made, put)(payload[0, :, 0]),
        "clear": lambda made, tokens: getattr(made, clear)(tokens),
        "fixed": {**NUMBERS, **fixed},
    }


def whole(get: str, put: str, clear: str, make: Callable[[Any, Any], object]) -> Parts:
    """Return the parts of an adapter that passes levels (levels, N, hidden) on as a list."""
    return {
        "make": make,
        "get": lambda made, tokens: getattr(made, get)(tokens),
        "put": lambda made, payload: getattr(made, put)(list(payload)),
        "clear": lambda made, tokens: getattr(made, clear)(tokens),
    }


def not_negative(count: int) -> int:
    """Return a count of rows; raises `ValueError` below 0, for a method that takes no count."""
    if count < 0:
        raise ValueError(count)
    return count


def backwards(rows: Tensor) -> dict[str, Tensor]:
    """Return rows (N, hidden) and their slots (N,) in reversed order, which a write from 0 on shows."""
    return {"values": rows.flip(0), "slots": torch.arange(len(rows), device=rows.device).flip(0)}
