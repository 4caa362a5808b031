"""Do recorded operations again in another order, on memory that is laid out as the device's is."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from deepstack_harness.streams.memory import Block, Slot
from deepstack_harness.streams.recorder import Recorded

_NEVER_WRITTEN = 0xFF  # in every byte: NaN in every floating dtype, -1 in every signed one


def play(recorded: Sequence[Recorded], order: Iterable[int], answer: Slot) -> Tensor:
    """Run the operations in `order` (their numbers); return a copy of the tensor in the slot `answer`.

    Its shape and dtype are those of the slot.
    """
    with torch.no_grad():
        memory = _Replayed()
        for number in order:
            memory.do(recorded[number])
        return memory.at(answer).clone()


class _Replayed:
    """Memory of one replay, made as it is first touched."""

    def __init__(self) -> None:
        self._bytes: dict[Block, Tensor] = {}

    def at(self, slot: Slot) -> Tensor:
        """Return the tensor that lies in a slot now."""
        content = self._bytes.setdefault(slot.block, _initial(slot.block)).view(slot.dtype)
        return content.as_strided(slot.size, slot.stride, slot.offset)

    def do(self, call: Recorded) -> None:
        """Run one operation; what it makes goes where it was made."""
        result = call.func(*self._tensors(call.args), **self._tensors(call.kwargs))
        made = result if isinstance(result, tuple | list) else (result,)
        for slot, tensor in zip(call.results, made, strict=False):  # an operation in place has no results
            self.at(slot).copy_(tensor)

    def _tensors(self, value: Any) -> Any:  # noqa: ANN401  # like for like
        match value:
            case Slot():
                return self.at(value)
            case dict():
                return {key: self._tensors(each) for key, each in value.items()}
            case tuple() | list():
                return type(value)(self._tensors(each) for each in value)
        return value


def _initial(block: Block) -> Tensor:
    if block.before is not None:
        return block.before.clone()
    return torch.full((block.bytes,), _NEVER_WRITTEN, dtype=torch.uint8)
