"""A buffer for the payload of deepstack, and its rows against those of the payload."""

import torch
from torch import Tensor

from deepstack_harness.models.programs.trace import CAPACITY, LEVELS, WIDTH, played


class SmallBuffer:
    """The payload between set and clear: levels of (CAPACITY, WIDTH)."""

    def __init__(self) -> None:
        self.tokens = 0
        self.levels = torch.zeros(LEVELS, CAPACITY, WIDTH)

    def get(self, tokens: int) -> tuple[Tensor, ...]:
        levels = self.levels[:, :tokens]
        return tuple(levels)

    def set(self, payload: Tensor) -> None:
        full = torch.zeros_like(self.levels)
        full[:, : payload.size(1)] = payload
        self.levels.copy_(full)
        self.tokens = payload.size(1)

    def clear(self, tokens: int) -> None:
        self.levels[:, :tokens] = 0
        self.tokens = 0


class CheckedBuffer(SmallBuffer):
    """A buffer that refuses what it has no room for."""

    def check(self, tokens: int) -> None:
        if tokens > CAPACITY:
            raise ValueError(f"{tokens} tokens requested, {self.tokens} set, room for {CAPACITY}")

    def get(self, tokens: int) -> tuple[Tensor, ...]:
        self.check(tokens)
        return super().get(tokens)

    def clear(self, tokens: int) -> None:
        self.check(tokens)
        super().clear(tokens)


class GrowingBuffer(SmallBuffer):
    """A buffer that makes room where a get needs more."""

    def get(self, tokens: int) -> tuple[Tensor, ...]:
        if tokens > self.levels.size(1):
            grown = torch.zeros(LEVELS, tokens, WIDTH)
            grown[:, : self.levels.size(1)] = self.levels
            self.levels = grown
        return super().get(tokens)


class ErasingBuffer(SmallBuffer):
    """A buffer whose get makes the padding zero."""

    def get(self, tokens: int) -> tuple[Tensor, ...]:
        first = tokens
        self.levels[:, first:tokens] = 0
        return super().get(tokens)


class MovingBuffer(SmallBuffer):
    """A buffer that makes room where a set needs it, in other storage."""

    moved = False

    def set(self, payload: Tensor) -> None:
        if payload.size(1) > self.levels.size(1):
            self.levels = torch.zeros_like(payload)
            self.moved = True
        super().set(payload)


class BareBuffer:
    """A buffer without an engine."""

    made_by = SmallBuffer

    def __init__(self) -> None:
        self.buffer = self.made_by()

    def wrong(self, op: str, hidden: Tensor, rows: Tensor) -> str:
        tokens = len(hidden)
        if op == "clear":
            self.buffer.clear(tokens)
            return ""
        count = tokens - sum(map(torch.equal, self.buffer.get(tokens)[0], rows[0]))
        return f"{count} of {tokens} rows are wrong or missing" if count else ""

    def faults(self) -> list[str]:
        return played(self.wrong, self.buffer.set)


class BareCheckedBuffer(BareBuffer):
    """A buffer that refuses, without an engine."""

    made_by = CheckedBuffer  # to test a buffer of your own, name it here


class BareGrowingBuffer(BareBuffer):
    """A buffer that grows, without an engine."""

    made_by = GrowingBuffer
