"""A table with one cache slot per token, kept between calls: a buffer with its own names, shape and dtype."""

import torch


class SlotTable:
    """Slots of the tokens of a step; what no token has is slot 0."""

    def __init__(self, capacity: int, device: torch.device) -> None:
        self.capacity = capacity
        self.slots = torch.zeros(capacity, dtype=torch.int64, device=device)
        self.used = 0

    def _check(self, tokens: int) -> None:
        if not 0 <= tokens <= self.capacity:
            raise ValueError(f"{tokens} tokens, room for {self.capacity}")

    def read(self, tokens: int) -> torch.Tensor:
        self._check(tokens)
        return self.slots[:tokens]

    def write(self, slots: torch.Tensor) -> None:
        if slots.dim() != 1:
            raise ValueError(f"slots of shape {tuple(slots.shape)}, not (N,)")
        self._check(len(slots))
        self.used = len(slots)
        self.slots[: self.used] = slots
        self.slots[self.used :] = 0

    def reset(self, tokens: int) -> None:
        self._check(tokens)
        self.slots.zero_()
        self.used = 0


class LeavesOldSlots(SlotTable):
    """Has a fault: a shorter step leaves the slots of the longer one before it."""

    def write(self, slots: torch.Tensor) -> None:
        self._check(len(slots))
        self.slots[: len(slots)] = slots


class Adapter:
    """A buffer around a SlotTable; `check slots.py:SlotTable --write-adapter FILE.py` wrote most of it."""

    fixed = {"dtype": "int64", "levels": 1, "hidden": 1}  # noqa: RUF012

    def __init__(self, capacity, hidden, levels, *, dtype, device):
        self.made = SlotTable(capacity=capacity, device=device)
        self.capacity = capacity

    def get(self, tokens):
        return (self.made.read(tokens)[:, None],)

    def set(self, payload):
        self.made.write(payload[0, :, 0])

    def clear(self, tokens):
        self.made.reset(tokens)
