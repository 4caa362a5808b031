"""Tensors as JSON, exact to the last bit, with their layout."""

from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
import torch
from torch import Tensor

_T = TypeVar("_T")


@dataclass(frozen=True)
class _PackedTensor:
    """Layout of a tensor, and its storage from its first element to its last (base64 in JSON)."""

    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    device: str
    requires_grad: bool
    storage: bytes


def to_json(value: object) -> Any:  # noqa: ANN401  # JSON
    """Return a value that contains tensors of any shape as JSON.

    Raises `NotImplementedError` for an object that has no form in JSON.
    """
    return msgspec.to_builtins(value, enc_hook=_pack)


def from_json(value: object, kind: type[_T]) -> _T:
    """Return the value of type `kind` that `to_json` was given; raises `msgspec.ValidationError`."""
    return msgspec.convert(value, kind, dec_hook=_unpack)


def _pack(tensor: object) -> _PackedTensor:
    if not isinstance(tensor, Tensor):
        raise NotImplementedError(f"{type(tensor)} has no form in JSON")
    steps = ((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    span = 1 + sum(steps) if tensor.numel() else 0
    storage = tensor.detach().as_strided((span,), (1,)).cpu().view(torch.uint8)
    return _PackedTensor(
        str(tensor.dtype).removeprefix("torch."),
        tuple(tensor.shape),
        tensor.stride(),
        str(tensor.device),
        tensor.requires_grad,
        storage.numpy().tobytes(),
    )


def _unpack(_kind: type, found: object) -> Tensor:
    packed = msgspec.convert(found, _PackedTensor)
    dtype = getattr(torch, packed.dtype)
    storage = torch.empty(0, dtype=dtype, device=packed.device)
    if packed.storage:  # torch.frombuffer refuses an empty buffer; the copy is aligned as torch does it
        storage = torch.frombuffer(bytearray(packed.storage), dtype=dtype).to(packed.device, copy=True)
    # Guards compare strides, also those of dimensions of size 1.
    return storage.as_strided(packed.shape, packed.stride).requires_grad_(packed.requires_grad)
