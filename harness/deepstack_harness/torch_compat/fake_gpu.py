"""Makes this process believe in a GPU that is not there, as far as generating code needs it.

For good: device guards, interfaces and drivers are held by the process, so this is
called in a worker of its own (`deepstack_harness.workers`).  Fake tensors on `cuda` can then be
made and compiled; nothing is ever launched.  Run on torch 2.11, 2.13 and 2.15; what is
most likely to change with another torch are the registry of device guards and
`ConstantFolder.run`.
"""

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

import torch
import torch._dynamo.device_interface as interfaces
from torch._inductor.constant_folding import ConstantFolder
from torch._inductor.fx_passes.joint_graph import UniformValueConstantFolder
from torch._inductor.runtime import triton_helpers
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from triton.runtime.driver import driver
from typing_extensions import override

from deepstack_harness.errors import MachineError
from deepstack_harness.torch_compat.fake_gpu_guard import plant_guard
from deepstack_harness.torch_compat.fake_gpu_interface import (
    NoDevice,
    always,
    driver_for,
    interface_for,
    properties_of,
)
from deepstack_harness.torch_compat.gpu_properties import GpuProperties


def pretend(gpu: GpuProperties) -> None:
    """Make `cuda` mean `gpu` from now on.

    Raises `MachineError` where this torch does not take part, or there is a real GPU.
    """
    plant_guard()
    interfaces.init_device_reg()
    interface = interface_for(gpu)
    for device in ("cuda", "cuda:0"):
        interfaces.register_interface_for_device(device, interface)
    for name, answer in _answers(gpu).items():
        _replace(torch.cuda, name, always(answer))
    _leave_device_alone()
    stand_in = driver_for(gpu)
    driver.set_active(stand_in)
    # Kernels set the driver anew when they are compiled.
    _replace(triton_helpers, "set_driver_to_gpu", lambda: driver.set_active(stand_in))


def _answers(gpu: GpuProperties) -> Mapping[str, object]:
    """Return the answers of functions of `torch.cuda`; heuristics of Inductor ask several of them."""
    return {
        "get_device_properties": properties_of(gpu),
        "get_device_capability": gpu.capability,
        "get_device_name": gpu.name,
        "current_device": 0,
        "device_count": 1,
        "is_available": True,
        "is_bf16_supported": True,
        "mem_get_info": (gpu.memory, gpu.memory),
        "synchronize": None,
        "is_current_stream_capturing": False,  # Dynamo asks; a CUDA build would ask the driver
        "get_rng_state": torch.zeros(16, dtype=torch.uint8),
        "set_rng_state": None,
    }


def _leave_device_alone() -> None:
    """Replace the functions that would start the device once it is said to be there."""
    _replace(torch.cuda, "device", NoDevice)
    _replace(torch.accelerator, "is_available", always(answer=False))
    _replace(FakeTensorMode, "avoid_device_init", property(always(answer=True)))
    _replace(ConstantFolder, "run", _on_cpu(ConstantFolder.run))
    # It makes a zero on the device for each product with a size that is 0: those of a step of no tokens.
    _replace(UniformValueConstantFolder, "__init__", _on_cpu(UniformValueConstantFolder.__init__))
    _replace(fake_tensor, "init_gpu_context", always(None))


def _replace(owner: object, name: str, value: object) -> None:
    """Replace for good; refuse a name that `owner` does not have, which would replace nothing."""
    if not hasattr(owner, name):
        raise MachineError(f"torch {torch.__version__} has no {name}, which simulating a GPU needs")
    setattr(owner, name, value)


def _on_cpu(run: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(run)
    def redirected(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401  # passed on as it is
        with _CudaToCpu():  # type: ignore[no-untyped-call]
            return run(*args, **kwargs)

    return redirected


class _CudaToCpu(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Mode that makes on the CPU what was asked for on `cuda`."""

    @override
    def __torch_dispatch__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        moved = {name: _moved(value) for name, value in (kwargs or {}).items()}
        return func(*map(_moved, args), **moved)


def _moved(value: object) -> object:
    asked = isinstance(value, torch.device) and value.type == "cuda"
    return torch.device("cpu") if asked else value
