"""A device guard for a GPU that is not there.

Every operator on a `cuda` tensor, fake ones too, takes a device guard.  A CUDA
build without a GPU puts torch's own do-nothing guard in place
(`torch._C._ensureCUDADeviceGuardSet`, which does so where the registered guard
counts 0 devices); a CPU build has no guard that could count.  So one is planted
that answers 0 to everything, and torch replaces it at once.
"""

import ctypes
from pathlib import Path

import torch

from deepstack_harness.errors import MachineError

_REGISTRY = "_ZN3c104impl26device_guard_impl_registryE"
_CUDA = 1
"""`c10::DeviceType::CUDA`."""
_METHODS = 64
"""More than `DeviceGuardImplInterface` has virtual methods; all of them are the same one."""

_planted: list[object] = []


def plant_guard() -> None:
    """Let torch use its do-nothing guard for `cuda`; raises `MachineError` where it does not."""
    if torch.cuda.device_count():
        raise MachineError(
            "there is a real GPU here; hide it (CUDA_VISIBLE_DEVICES=) to simulate another one"
        )
    slot = _slot()
    if not slot[_CUDA]:
        slot[_CUDA] = counts_nothing = _object_of_zeros()
        torch._C._ensureCUDADeviceGuardSet()
        if slot[_CUDA] in {None, counts_nothing}:
            raise MachineError(
                f"torch {torch.__version__} does not put its own guard in place of a planted one"
            )
    torch._C._ensureCUDADeviceGuardSet()


def _slot() -> "ctypes._Pointer[ctypes.c_void_p]":
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
    try:
        registry = getattr(library, _REGISTRY)
    except AttributeError:
        raise MachineError(
            f"torch {torch.__version__} keeps its device guards where this harness does not know"
        ) from None
    return ctypes.cast(registry, ctypes.POINTER(ctypes.c_void_p))


def _object_of_zeros() -> int:
    """Return the address of a C++ object with virtual methods that all answer 0."""
    method = ctypes.CFUNCTYPE(ctypes.c_int8, ctypes.c_void_p)(lambda _: 0)
    address = ctypes.cast(method, ctypes.c_void_p).value
    table = (ctypes.c_void_p * _METHODS)(*[address] * _METHODS)
    thing = (ctypes.c_void_p * 1)(ctypes.addressof(table))
    _planted.extend((method, table, thing))  # kept for as long as the process lives
    return ctypes.addressof(thing)
