"""The two who are asked about a GPU: Dynamo's device interface, and Triton's driver.

`torch._dynamo.device_interface.DeviceInterface` is how Inductor sees devices;
`triton.backends.driver.GPUDriver` is Triton's, whose own needs libcuda.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Self

import torch
from torch._dynamo.device_interface import DeviceInterface
from triton.backends.compiler import GPUTarget

from deepstack_harness.torch_compat.gpu_properties import GpuProperties


def always(answer: object) -> Callable[..., Any]:
    """Return a function that gives `answer`, whatever it is asked."""
    return lambda *_, **__: answer


class NoDevice:
    """Stand-in for `torch.cuda.device`: there is nothing to switch to."""

    def __init__(self, device: object = None) -> None:
        """Accept any device."""

    def __enter__(self) -> Self:
        """Do nothing: there is nothing to switch."""
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing: there is nothing to switch back."""


def properties_of(gpu: GpuProperties) -> SimpleNamespace:
    """Return the figures under the names that `torch.cuda.get_device_properties` uses."""
    major, minor = gpu.capability
    return SimpleNamespace(
        name=gpu.name, major=major, minor=minor, total_memory=gpu.memory,
        multi_processor_count=gpu.multiprocessors, warp_size=gpu.warp_size, L2_cache_size=gpu.l2_cache,
        regs_per_multiprocessor=gpu.registers_per_multiprocessor,
        max_threads_per_multi_processor=gpu.threads_per_multiprocessor,
        max_threads_per_block=gpu.threads_per_block,
        shared_memory_per_block=gpu.shared_per_block,
        shared_memory_per_block_optin=gpu.shared_per_block_optin,
        shared_memory_per_multiprocessor=gpu.shared_per_multiprocessor,
        gcnArchName="", is_integrated=0, is_multi_gpu_board=0,
    )  # fmt: skip


def interface_for(gpu: GpuProperties) -> type[DeviceInterface]:
    """Return a device interface that answers for `gpu`."""
    shared = {
        "current_device": 0,
        "set_device": None,
        "get_device_properties": properties_of(gpu),
    }
    answers = {
        **shared,
        "exchange_device": 0,
        "maybe_exchange_device": 0,
        "device_count": 1,
        "is_available": True,
        "synchronize": None,
        "get_raw_stream": 0,
        "get_multi_processor_count": gpu.multiprocessors,  # asked from torch 2.14 on
        "get_compute_capability": gpu.architecture,
        "is_bf16_supported": True,
        "is_triton_capable": True,
        "raise_if_triton_unavailable": None,
        "memory_allocated": 0,
    }
    worker = type("Worker", (DeviceInterface.Worker,), _static(shared))
    classes = {"Worker": worker, "device": NoDevice, "Event": torch.Event, "Stream": torch.Stream}
    return type("PretendedInterface", (DeviceInterface,), {**_static(answers), **classes})


def _static(answers: dict[str, Any]) -> dict[str, Any]:
    return {name: staticmethod(always(answer)) for name, answer in answers.items()}


def driver_for(gpu: GpuProperties) -> SimpleNamespace:
    """Return a Triton driver that names `gpu` as its target, and refuses to load what was compiled."""
    limits = {
        "max_shared_mem": gpu.shared_per_block_optin,
        "max_num_regs": gpu.registers_per_multiprocessor,
        "multiprocessor_count": gpu.multiprocessors,
        "warpSize": gpu.warp_size,
    }

    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError(f"there is no {gpu.name}: a kernel was about to be launched")

    return SimpleNamespace(
        utils=SimpleNamespace(get_device_properties=always(limits), load_binary=refuse),
        launcher_cls=refuse,
        is_active=always(answer=True),
        get_current_target=always(GPUTarget("cuda", gpu.architecture, gpu.warp_size)),
        get_current_device=always(0),
        get_current_stream=always(0),
        get_device_capability=always(gpu.capability),
        get_active_torch_device=always(torch.device("cuda", 0)),
    )
