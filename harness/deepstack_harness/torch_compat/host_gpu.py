"""Tensors that say `cuda:0` and lie in host memory: for guards that are kept, and for unbacked sizes.

A graph that was traced on `cuda` is called with such tensors, so that its guards hold, and a kernel is given
the tensors of the CPU that they stand for.  A CPU build of torch takes a DLPack capsule of any device.  It
has no kernels for `cuda`: nothing can be computed with the result, which is only traced and passed on.
Run on torch 2.13.
"""

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias
from unittest.mock import patch

import torch
from torch import Tensor, nn

from deepstack_harness.errors import MachineError
from deepstack_harness.torch_compat.fake_gpu_interface import always

_CUDA = 2
"""`kDLCUDA` of dlpack.h."""
_CAPSULE = b"dltensor"

Geometry: TypeAlias = tuple[int, tuple[int, ...], tuple[int, ...], torch.dtype]


class _Device(ctypes.Structure):
    _fields_ = (("kind", ctypes.c_int32), ("index", ctypes.c_int32))


class _Head(ctypes.Structure):
    """The first members of `DLManagedTensor` of dlpack.h: the data's address, and its device."""

    _fields_ = (("data", ctypes.c_void_p), ("device", _Device))


class HostGpu:
    """Tensors on `cuda:0`, each over the memory of one of the CPU, and the way back."""

    def __init__(self) -> None:
        self._on_host: dict[Geometry, Tensor] = {}
        self._parameters: dict[int, tuple[nn.Parameter, nn.Parameter]] = {}

    def on_gpu(self, tensor: Tensor) -> Tensor:
        """Return a tensor on `cuda:0` of the same shape, strides and memory, which is no view.

        Raises `MachineError` where this torch does not take it.
        """
        moved = _moved(tensor.detach())
        self._on_host[_geometry(moved)] = tensor
        return moved

    def parameter(self, parameter: nn.Parameter) -> nn.Parameter:
        """Return the same for a parameter of any shape; always the same object, since guards may look."""
        known = self._parameters.get(id(parameter))
        if known is None:
            moved = nn.Parameter(self.on_gpu(parameter.data), requires_grad=parameter.requires_grad)
            known = self._parameters[id(parameter)] = (parameter, moved)
        return known[1]

    def on_host(self, given: object) -> object:
        """Return the tensor of the CPU that one on `cuda:0` stands for; anything else as it is.

        Raises `MachineError` for a tensor of any shape that was not made here.
        """
        if not isinstance(given, Tensor) or given.device.type != "cuda":
            return given
        found = self._on_host.get(_geometry(given))
        if found is None:
            raise MachineError(
                f"torch {torch.__version__} calls a graph with a tensor {tuple(given.shape)} of "
                f"{given.device} that is no argument of it: look at what it makes of inputs before it calls "
                "the code of Inductor, and change deepstack_harness/torch_compat/host_gpu.py"
            )
        return found

    @contextmanager
    def holding(self, module: nn.Module) -> Iterator[Callable[[Tensor], Tensor]]:
        """Give a module parameters and buffers on `cuda:0` while open; yield the function for its inputs.

        Tensors may have any shape.  The memory stays the same, so that a buffer that is written between two
        steps has its new rows.
        """
        taken = [(one, dict(one._parameters), dict(one._buffers)) for one in module.modules()]
        try:
            for one, parameters, buffers in taken:
                for name, parameter in parameters.items():
                    one._parameters[name] = None if parameter is None else self.parameter(parameter)
                for name, buffer in buffers.items():
                    one._buffers[name] = None if buffer is None else self.on_gpu(buffer)
            yield self.on_gpu
        finally:
            for one, parameters, buffers in taken:
                one._parameters.update(parameters)
                one._buffers.update(buffers)


def _geometry(tensor: Tensor) -> Geometry:
    return tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype


def _moved(tensor: Tensor) -> Tensor:
    """Return a tensor on `cuda:0` over the memory of one of the CPU, which it keeps alive."""
    capsule = torch._C._to_dlpack(tensor)
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    device = _Head.from_address(pointer(capsule, _CAPSULE)).device
    device.kind, device.index = _CUDA, 0
    with patch.object(torch.cuda, "_lazy_init", always(None)):  # it would look for a driver
        moved = torch._C._from_dlpack(capsule)
    if moved.device.type != "cuda" or moved.data_ptr() != tensor.data_ptr():
        raise MachineError(
            f"torch {torch.__version__} made a tensor of {moved.device} of memory that was said to be "
            "of cuda: guards that are kept need a CPU build that takes DLPack at its word"
        )
    return moved
