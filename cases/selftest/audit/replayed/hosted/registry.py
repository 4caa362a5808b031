"""Slots: one static tensor for each named member of the inputs of a step."""

import dataclasses
from collections.abc import Callable

import torch


@dataclasses.dataclass
class Slot:
    name: str
    shape: tuple
    dtype: torch.dtype
    copies: bool = True
    after: Callable | None = None
    buffer: torch.Tensor | None = None


class Registry:
    def __init__(self):
        self.slots = {}

    def add(self, slot):
        slot.buffer = torch.zeros(slot.shape, dtype=slot.dtype)
        self.slots[slot.name] = slot

    def view(self, name, n):
        return self.slots[name].buffer[:n]

    def fill_from(self, inputs, n):
        targets, sources = [], []
        for slot in self.slots.values():
            if not slot.copies:
                continue
            source = getattr(inputs, slot.name, None)
            if source is not None:
                targets.append(slot.buffer[:n])
                sources.append(source)
        torch._foreach_copy_(targets, sources)
        for slot in self.slots.values():
            if slot.after is not None:
                slot.after(slot.buffer, inputs)


def count_live(buffer, inputs):
    buffer.copy_(inputs.live.sum())


def token_registry(rows):
    registry = Registry()

    def plain(name, dtype):
        registry.add(Slot(name, (rows,), dtype))

    plain("ids", torch.int64)
    plain("places", torch.int64)
    registry.add(Slot(name="windows", shape=(rows,), dtype=torch.int64, copies=False))
    registry.add(Slot("live", (1,), torch.int32, copies=False, after=count_live))
    return registry
