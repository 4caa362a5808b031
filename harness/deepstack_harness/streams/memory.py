"""Memory as a caching allocator hands it out, followed through the lives of tensors on the CPU.

As CUDA's: memory comes from the current stream's own pool, goes back there as soon as
the host lets the last tensor on it go, and is then given out again to that stream,
whatever other streams still do with it.  `Tensor.record_stream` keeps it from that.
"""

import weakref
from collections import defaultdict
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from deepstack_harness.errors import NotMeasured

_ALIGNED = 512  # bytes: what CUDA's allocator rounds up to


@dataclass(frozen=True, eq=False)
class Block:
    """Some memory of a stream's pool.

    `before` has the bytes that a tensor brought along, which was there before; None for the others.
    """

    number: int
    bytes: int
    stream: int
    before: Tensor | None = None

    @property
    def name(self) -> str:
        """The word by which facts call it."""
        return f"memory {self.number}"


@dataclass(frozen=True)
class Slot:
    """A tensor as a place in memory: how to find it again."""

    block: Block
    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


class Memory:
    """Map of storages to blocks of memory.

    Storage is known by its address, which is its own as long as it lives.
    """

    def __init__(self) -> None:
        self._live: dict[int, Block] = {}
        self._tensors: dict[int, dict[int, weakref.ref[Tensor]]] = defaultdict(dict)
        self._free: dict[tuple[int, int], list[Block]] = defaultdict(list)
        self._kept: set[Block] = set()
        self._blocks = 0

    @property
    def live(self) -> frozenset[Block]:
        """Storages that are given out now."""
        return frozenset(self._live.values())

    def given(self, tensor: Tensor) -> Slot:
        """Return the place of a tensor of any shape; an unknown one was there before, in no stream's pool."""
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self._live:
            content = torch.empty(0, dtype=torch.uint8).set_(storage).clone()
            self._live[storage.data_ptr()] = self._new(storage.nbytes(), stream=-1, before=content)
        return self._slot(tensor)

    def made(self, tensor: Tensor, stream: int) -> Slot:
        """Return the place of a result of any shape; new memory is taken from the pool of `stream`."""
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self._live:
            self._live[storage.data_ptr()] = self._take(storage.nbytes(), stream)
        return self._slot(tensor)

    def keep(self, tensor: Tensor) -> None:
        """Keep the memory of a tensor of any shape out of its pool for good: another stream uses it too."""
        self._kept.add(self.given(tensor).block)

    def _take(self, size: int, stream: int) -> Block:
        size = -(-size // _ALIGNED) * _ALIGNED
        free = self._free[stream, size]
        return free.pop() if free else self._new(size, stream)

    def _new(self, size: int, stream: int, before: Tensor | None = None) -> Block:
        if not size:
            raise NotMeasured("an empty tensor has no memory that could be followed")
        self._blocks += 1
        return Block(self._blocks, size, stream, before)

    def _slot(self, tensor: Tensor) -> Slot:
        address = tensor.untyped_storage().data_ptr()
        known = self._tensors[address]
        if id(tensor) not in known:
            known[id(tensor)] = weakref.ref(tensor, partial(self._drop, address, id(tensor)))
        block = self._live[address]
        return Slot(block, tensor.dtype, tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset()))

    def _drop(self, address: int, own: int, _: object) -> None:
        known = self._tensors[address]
        del known[own]
        if not known:
            del self._tensors[address]
            block = self._live.pop(address)
            if block not in self._kept:
                self._free[block.stream, block.bytes].append(block)
