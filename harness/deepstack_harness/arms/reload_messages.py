"""What goes between this process and a fresh one: JSON, with tensors exact to the last bit."""

from dataclasses import dataclass

import msgspec
import torch
from torch import Tensor

from deepstack_harness.torch_compat.modules import Part


class Load(msgspec.Struct, frozen=True, tag=True):
    """Load the artifact in file `path` for a decoder of these parts, and call it `key`."""

    key: int
    path: str
    decoder: list[Part]
    threads: int


class Call(msgspec.Struct, frozen=True, tag=True):
    """Call artifact `key` (see `deepstack_harness.contract.protocols.Inputs` for shapes)."""

    key: int
    hidden: Tensor | None
    positions: Tensor
    payload: tuple[Tensor, ...] | None
    grad: bool


class Drop(msgspec.Struct, frozen=True, tag=True):
    """Forget artifact `key`."""

    key: int


class Done(msgspec.Struct, frozen=True, tag=True):
    """It went well; `out` (n, h) if it was a call.  `compiled`: graphs that process compiled itself."""

    out: Tensor | None = None
    compiled: int = 0


class Failed(msgspec.Struct, frozen=True, tag=True):
    """The artifact raised: the exception's class name, its text, and its `file:line` outside torch."""

    name: str
    message: str
    where: str


Order = Load | Call | Drop
Answer = Done | Failed


@dataclass(frozen=True)
class _Packed:
    """A tensor's layout, and its storage from its first element to its last (base64 in JSON)."""

    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    device: str
    requires_grad: bool
    storage: bytes


def encode(message: Order | Answer) -> bytes:
    """The message as JSON."""
    return _ENCODER.encode(message)


def decode_order(text: bytes) -> Order:
    """Read an order; raises `msgspec.ValidationError` for anything else."""
    order: Order = _ORDERS.decode(text)
    return order


def decode_answer(text: bytes) -> Answer:
    """Read an answer; raises `msgspec.ValidationError` for anything else."""
    answer: Answer = _ANSWERS.decode(text)
    return answer


def _pack(tensor: object) -> _Packed:
    if not isinstance(tensor, Tensor):
        raise NotImplementedError(f"{type(tensor)} has no form in JSON")
    steps = ((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    span = 1 + sum(steps) if tensor.numel() else 0
    storage = tensor.detach().as_strided((span,), (1,)).cpu().view(torch.uint8)
    return _Packed(
        str(tensor.dtype).removeprefix("torch."),
        tuple(tensor.shape),
        tensor.stride(),
        str(tensor.device),
        tensor.requires_grad,
        storage.numpy().tobytes(),
    )


def _unpack(_kind: type, found: object) -> Tensor:
    packed = msgspec.convert(found, _Packed)
    dtype = getattr(torch, packed.dtype)
    storage = torch.empty(0, dtype=dtype, device=packed.device)
    if packed.storage:  # torch.frombuffer refuses to read nothing; the copy is aligned as torch does it
        storage = torch.frombuffer(bytearray(packed.storage), dtype=dtype).to(packed.device, copy=True)
    # Guards compare strides, also those of dimensions of size 1.
    return storage.as_strided(packed.shape, packed.stride).requires_grad_(packed.requires_grad)


_ENCODER = msgspec.json.Encoder(enc_hook=_pack)
_ORDERS = msgspec.json.Decoder(Order, dec_hook=_unpack)
_ANSWERS = msgspec.json.Decoder(Answer, dec_hook=_unpack)
