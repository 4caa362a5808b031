"""Memory of one step on a GPU that is not there: which bytes were written, and what each launch touched.

Kernels are not given real addresses. The upper bits of an address number the argument of the launch, the
lower ones are a byte offset in the storage of this argument, so that each access belongs to one tensor, is
known to be outside of it or inside, and a wrong one can neither crash this process nor read a neighbour.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from deepstack_harness.contract.facts import AccessFacts, Disagreement, KernelAccess, LibraryCall, Span

Bytes: TypeAlias = NDArray[np.uint8]
Places: TypeAlias = NDArray[np.int64]
"""Byte offsets in a storage, which may be negative or past its end."""
Lanes: TypeAlias = NDArray[np.bool_]

_NUMBERED_AT = 40
"""The bit from which an address has the number of its argument: no tensor has 2**39 bytes."""
_ORIGIN = 1 << 39
"""The address of byte 0 in the space of one argument: offsets of both signs stay in that space."""
_UNWRITTEN = 0xFF
"""Every byte of new memory: a NaN in each floating dtype, and -1 in integers."""


@dataclass(frozen=True)
class DeviceStorage:
    """The bytes of one storage, and marks of the written ones; `kept` prevents reuse of its address."""

    data: Bytes
    written: Bytes
    kept: torch.UntypedStorage


class TouchedTensor:
    """A tensor argument of one launch, and the bytes of its storage that the launch read and wrote."""

    def __init__(self, name: str, parameter: str, tensor: Tensor, storage: DeviceStorage) -> None:
        """Begin untouched; the tensor may have any shape and strides."""
        self.name = name
        self.parameter = parameter
        self.tensor = tensor
        self.storage = storage
        itemsize = tensor.element_size()
        self.first = _offset(tensor)
        self.end = self.first + _reach(tensor) * itemsize
        self._read: Bytes | None = None
        self._written: Bytes | None = None
        self._lowest, self._highest = self.end, self.first
        self._wild: set[int] = set()
        self._in_storage = True
        self._unwritten = 0

    def load(self, at: Places, active: Lanes, kind: np.dtype[Any]) -> tuple[Lanes, NDArray[Any]]:
        """Read the active lanes; return which of them are inside the storage, and their elements."""
        inside = self._touch(at, active, kind.itemsize)
        if self._read is None:
            self._read = np.zeros_like(self.storage.data)
        index, whole = at[inside] // kind.itemsize, np.dtype(f"u{kind.itemsize}")
        ones = _all_ones(kind.itemsize)
        _elements(self._read, whole)[index] = ones
        missing = index[_elements(self.storage.written, whole)[index] != ones]
        self._unwritten += len(np.unique(missing)) * kind.itemsize
        return inside, _elements(self.storage.data, kind)[index]

    def store(self, at: Places, active: Lanes, values: NDArray[Any], *, adds: bool = False) -> None:
        """Write the active lanes, or add to what is there; writes outside of the storage are only noted."""
        itemsize = values.dtype.itemsize
        inside = self._touch(at, active, itemsize)
        if self._written is None:
            self._written = np.zeros_like(self.storage.data)
        index, whole = at[inside] // itemsize, np.dtype(f"u{itemsize}")
        data = _elements(self.storage.data, values.dtype)
        if adds:
            np.add.at(data, index, values[inside])
        else:
            data[index] = values[inside]
        for written in (self._written, self.storage.written):
            _elements(written, whole)[index] = _all_ones(itemsize)

    def access(self, kernel: str, launch: int) -> KernelAccess | None:
        """Return the facts of the launch that has ended; None for an argument that it did not touch."""
        if self._read is None and self._written is None:
            return None
        itemsize = self.tensor.element_size()
        return KernelAccess(
            kernel=kernel, tensor=self.name, size=self.end - self.first,
            first=self._lowest - self.first, end=self._highest - self.first, unwritten=self._unwritten,
            launch=launch, argument=self.parameter, shape=tuple(self.tensor.shape), itemsize=itemsize,
            read=self._rows(self._read), written=self._rows(self._written),
            wild=_spans(sorted(self._wild)), in_storage=self._in_storage,
            elements_read=self._count(self._read), elements_written=self._count(self._written),
        )  # fmt: skip

    def _touch(self, at: Places, active: Lanes, itemsize: int) -> Lanes:
        """Note the extremes and what is outside; return the active lanes that are inside the storage."""
        touched = at[active]
        if not touched.size:
            return active
        self._lowest = min(self._lowest, int(touched.min()))
        self._highest = max(self._highest, int(touched.max()) + itemsize)
        if self._lowest >= self.first and self._highest <= self.end:
            return active
        wild = touched[(touched < self.first) | (touched + itemsize > self.end)]
        stride = self.tensor.stride(0) if self.tensor.dim() else 1
        row_bytes = max(1, stride) * self.tensor.element_size()
        self._wild |= set(((wild - self.first) // row_bytes).tolist())
        inside: Lanes = active & (at >= 0) & (at + itemsize <= len(self.storage.data))
        self._in_storage &= bool((inside == active).all())
        return inside

    def _rows(self, touched: Bytes | None) -> tuple[Span, ...]:
        tensor = self.tensor
        if touched is None or not tensor.numel():
            return ()
        marks = np.ascontiguousarray(touched[self.first : self.end : tensor.element_size()])
        rows = torch.from_numpy(marks).as_strided(tensor.shape, tensor.stride())
        by_row = rows.reshape(tensor.size(0) if tensor.dim() else 1, -1).any(1)
        return _spans(by_row.nonzero().flatten().tolist())

    def _count(self, touched: Bytes | None) -> int:
        if touched is None:
            return 0
        itemsize = self.tensor.element_size()
        return int(np.count_nonzero(touched[self.first % itemsize :: itemsize]))


class DeviceMemory:
    """All storages of one call of a compiled decoder, and what its kernels and its library calls did."""

    def __init__(self, known: Mapping[str, Tensor]) -> None:
        """Begin with `known` weights and inputs of any shape; accesses are reported under their names."""
        self._storages: dict[int, DeviceStorage] = {}
        self._names: dict[tuple[int, int], str] = {}
        self._owners: dict[int, str] = {}
        self._allocated = 0
        for name, tensor in known.items():
            whole = tensor.untyped_storage().data_ptr()
            self._names.setdefault((whole, _offset(tensor)), name)
            self._owners.setdefault(whole, name)
        self._accesses: list[KernelAccess] = []
        self._calls: list[LibraryCall] = []
        self._launch: tuple[str, Sequence[str]] = ("", ())
        self._launches = 0
        self._arguments: list[TouchedTensor] = []
        self.programs = 0
        self.compared = 0
        self.disagreements: list[Disagreement] = []

    # Storage

    def allocate(self, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Return a new tensor, of shape `size`, of which nothing is written yet."""
        tensor = torch.empty_strided(tuple(size), tuple(stride), dtype=dtype)
        self.storage(tensor, written=False).data.fill(_UNWRITTEN)
        self._owners[tensor.untyped_storage().data_ptr()] = f"buffer {self._allocated}"
        self._allocated += 1
        return tensor

    def storage(self, tensor: Tensor, *, written: bool = True) -> DeviceStorage:
        """Return the storage of a tensor of any shape; a new one is wholly written, or not at all."""
        whole = tensor.untyped_storage()
        address = whole.data_ptr()
        if address not in self._storages:
            data = torch.empty(0, dtype=torch.uint8).set_(whole).numpy()
            marks = np.full(len(data), 0xFF if written else 0, np.uint8)
            self._storages[address] = DeviceStorage(data, marks, whole)
        return self._storages[address]

    def name(self, tensor: Tensor) -> str:
        """Return the name of an input or a weight of any shape, or the number of a buffer."""
        whole = tensor.untyped_storage().data_ptr()
        exact = self._names.get((whole, _offset(tensor)))
        return exact or self._owners.get(whole, "a result of torch")

    # Launches

    def begin(self, kernel: str, parameters: Sequence[str]) -> None:
        """Begin a launch; `parameters` are those of the kernel that are tensors, in order."""
        self._launch, self._arguments = (kernel, parameters), []

    def address(self, tensor: Tensor) -> int:
        """Return the made-up address of the next tensor argument (any shape) of the launch."""
        number, parameters = len(self._arguments), self._launch[1]
        parameter = parameters[number] if number < len(parameters) else f"argument {number}"
        argument = TouchedTensor(self.name(tensor), parameter, tensor, self.storage(tensor))
        self._arguments.append(argument)
        return (number << _NUMBERED_AT) + _ORIGIN + argument.first

    def end(self) -> None:
        """End the launch: count its accesses, and forget its byte maps."""
        kernel = self._launch[0]
        accesses = (argument.access(kernel, self._launches) for argument in self._arguments)
        self._accesses += [access for access in accesses if access is not None]
        self._launches += 1
        self._arguments = []

    def load(
        self, addresses: NDArray[np.uint64], mask: Lanes, other: NDArray[Any] | int, kind: np.dtype[Any]
    ) -> NDArray[Any]:
        """Return one element for each lane: `other` where masked off, NaN or -1 outside of memory."""
        argument, at, active = self._lanes(addresses, mask)
        inside, elements = argument.load(at, active, kind)
        out = np.broadcast_to(other, addresses.shape).astype(kind)
        if inside is not active:
            out.view(f"u{kind.itemsize}")[active & ~inside] = _all_ones(kind.itemsize)
        out[inside] = elements
        return out

    def store(
        self, addresses: NDArray[np.uint64], values: NDArray[Any], mask: Lanes, *, adds: bool = False
    ) -> None:
        """Write, or add, one value for each lane that is not masked off."""
        argument, at, active = self._lanes(addresses, mask)
        argument.store(at, active, np.broadcast_to(values, addresses.shape), adds=adds)

    def _lanes(self, addresses: NDArray[np.uint64], mask: Lanes) -> tuple[TouchedTensor, Places, Lanes]:
        """Return the argument that the lanes point into, their offsets, and the lanes that are active."""
        active: Lanes = np.broadcast_to(mask, addresses.shape).astype(bool)
        # A masked-off lane may hold any address; all active ones are offsets of one pointer.
        pointed = addresses[active] if active.any() else addresses
        number = min(int(pointed.flat[0]) >> _NUMBERED_AT, len(self._arguments) - 1)
        at = (addresses - np.uint64((number << _NUMBERED_AT) + _ORIGIN)).astype(np.int64)
        return self._arguments[number], at, active

    # Library calls and facts

    def called(self, operation: str, operands: Mapping[str, Tensor], written: Sequence[Tensor]) -> None:
        """Note an operation of torch on tensors of any shapes, and what it has written."""
        unwritten = []
        for operand in operands.values():
            # Between the rows of a view are bytes that belong to others.
            itemsize, first = operand.element_size(), _offset(operand)
            last = first + _reach(operand) * itemsize
            marks = np.ascontiguousarray(self.storage(operand).written[first:last:itemsize])
            if not torch.from_numpy(marks).as_strided(operand.shape, operand.stride()).all():
                unwritten.append(self.name(operand))
        moved = sum(tensor.numel() * tensor.element_size() for tensor in (*operands.values(), *written))
        names = tuple(map(self.name, operands.values()))
        self._calls.append(LibraryCall(operation, names, moved, tuple(unwritten)))
        for tensor in written:
            first = _offset(tensor)
            self.storage(tensor).written[first : first + _reach(tensor) * tensor.element_size()] = 0xFF

    def facts(self, out: Tensor | None, tokens: int) -> AccessFacts:
        """Return the facts of the call; its output has shape (rows, hidden), and is None where it raised."""
        unwritten = any(access.unwritten for access in self._accesses)
        unwritten |= any(call.unwritten for call in self._calls)
        rows = int(out[:tokens].isnan().flatten(1).any(1).sum()) if unwritten and out is not None else 0
        return AccessFacts(
            tuple(self._accesses), rows, tuple(self._calls), self.programs, self.compared,
            tuple(self.disagreements),
        )  # fmt: skip

    def results(self) -> list[tuple[str, DeviceStorage]]:
        """Return the parameters of the launch that is under way, each with its storage."""
        return [(argument.parameter, argument.storage) for argument in self._arguments]


def _offset(tensor: Tensor) -> int:
    return int(tensor.storage_offset()) * tensor.element_size()


def _reach(tensor: Tensor) -> int:
    """Return the number of elements from the first to the last one of a view, gaps included."""
    if not tensor.numel():
        return 0
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    return 1 + sum((int(n) - 1) * int(step) for n, step in steps)


def _elements(data: Bytes, kind: np.dtype[Any]) -> NDArray[Any]:
    return data[: len(data) // kind.itemsize * kind.itemsize].view(kind)


def _all_ones(itemsize: int) -> NDArray[Any]:
    return np.frombuffer(b"\xff" * itemsize, f"u{itemsize}")


def _spans(rows: Sequence[int]) -> tuple[Span, ...]:
    """Return ascending numbers as ranges."""
    spans: list[Span] = []
    for row in rows:
        if spans and spans[-1][1] == row:
            spans[-1] = (spans[-1][0], row + 1)
        else:
            spans.append((row, row + 1))
    return tuple(spans)
