"""Make this process believe in a GPU that it does not have, as far as generating and tracing code needs it.

`pretend` is for good: device guards, interfaces and drivers are held by the process, so it is called in a
worker of its own (`deepstack_harness.workers`). It plants a device guard, because every operator on a `cuda`
tensor takes one, and takes the place of the GPU for Dynamo's `DeviceInterface`, which is how Inductor sees
devices, and for Triton's driver, whose own needs libcuda. Fake tensors on `cuda` can then be made and
compiled, and nothing is ever launched.

`compile_candidates` compiles generated Triton kernels for that GPU: registers, spills, shared memory, grid.
`HostGpu` makes tensors whose device is `cuda:0` and whose memory is the host's.

Run on torch 2.10 .. 2.15. What is most likely to change with another torch are
the registry of device guards and `ConstantFolder.run`.
"""

import ctypes
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import wraps
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeAlias
from unittest.mock import patch

import torch
import torch._dynamo.device_interface as interfaces
from torch import Tensor, nn
from torch._dynamo.device_interface import DeviceInterface
from torch._inductor import config
from torch._inductor.codecache import PyCodeCache
from torch._inductor.constant_folding import ConstantFolder
from torch._inductor.fx_passes.joint_graph import UniformValueConstantFolder
from torch._inductor.runtime import triton_helpers
from torch._inductor.runtime.triton_heuristics import GridExpr
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import get_ptxas
from triton.runtime.driver import driver
from typing_extensions import override

from deepstack_harness.compile.torch_compat.inductor import Function
from deepstack_harness.compile.torch_compat.modes import holding
from deepstack_harness.compile.torch_compat.targets import GpuProperties
from deepstack_harness.contract.facts import Candidate
from deepstack_harness.errors import MachineError

_REGISTRY = "_ZN3c104impl26device_guard_impl_registryE"
_CUDA_GUARD = 1
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
    if not slot[_CUDA_GUARD]:
        slot[_CUDA_GUARD] = counts_nothing = _guard_returning_zero()
        torch._C._ensureCUDADeviceGuardSet()
        if slot[_CUDA_GUARD] in {None, counts_nothing}:
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


def _guard_returning_zero() -> int:
    """Return the address of a C++ object with virtual methods that all return 0."""
    method = ctypes.CFUNCTYPE(ctypes.c_int8, ctypes.c_void_p)(lambda _: 0)
    address = ctypes.cast(method, ctypes.c_void_p).value
    table = (ctypes.c_void_p * _METHODS)(*[address] * _METHODS)
    thing = (ctypes.c_void_p * 1)(ctypes.addressof(table))
    _planted.extend((method, table, thing))  # referenced for as long as the process lives
    return ctypes.addressof(thing)


def always(result: object) -> Callable[..., Any]:
    """Return a function that returns `result`, whatever its arguments are."""
    return lambda *_, **__: result


NoDevice = nullcontext
"""Replacement of `torch.cuda.device`: there is nothing to switch to."""


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
    """Return a device interface that returns the properties of `gpu`."""
    shared = {
        "current_device": 0,
        "set_device": None,
        "get_device_properties": properties_of(gpu),
    }
    results = {
        **shared,
        "exchange_device": 0,
        "maybe_exchange_device": 0,
        "device_count": 1,
        "is_available": True,
        "synchronize": None,
        "get_raw_stream": 0,
        "get_multi_processor_count": gpu.multiprocessors,  # called from torch 2.14 on
        "get_compute_capability": gpu.architecture,
        "is_bf16_supported": True,
        "is_triton_capable": True,
        "raise_if_triton_unavailable": None,
        "memory_allocated": 0,
    }
    worker = type("Worker", (DeviceInterface.Worker,), _static(shared))
    classes = {"Worker": worker, "device": NoDevice, "Event": torch.Event, "Stream": torch.Stream}
    return type("PretendedInterface", (DeviceInterface,), {**_static(results), **classes})


def _static(results: dict[str, Any]) -> dict[str, Any]:
    return {name: staticmethod(always(result)) for name, result in results.items()}


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
        is_active=always(result=True),
        get_current_target=always(GPUTarget("cuda", gpu.architecture, gpu.warp_size)),
        get_current_device=always(0),
        get_current_stream=always(0),
        get_device_capability=always(gpu.capability),
        get_active_torch_device=always(torch.device("cuda", 0)),
    )


def pretend(gpu: GpuProperties) -> None:
    """Make `cuda` mean `gpu` from now on.

    Raises `MachineError` where this torch does not take part, or there is a real GPU.
    """
    plant_guard()
    interfaces.init_device_reg()
    interface = interface_for(gpu)
    for device in ("cuda", "cuda:0"):
        interfaces.register_interface_for_device(device, interface)
    results = {  # heuristics of Inductor call several of them
        "get_device_properties": properties_of(gpu),
        "get_device_capability": gpu.capability,
        "get_device_name": gpu.name,
        "current_device": 0,
        "device_count": 1,
        "is_available": True,
        "is_bf16_supported": True,
        "mem_get_info": (gpu.memory, gpu.memory),
        "synchronize": None,
        "is_current_stream_capturing": False,  # Dynamo calls it; a CUDA build would call the driver
        "get_rng_state": torch.zeros(16, dtype=torch.uint8),
        "set_rng_state": None,
    }
    for name, result in results.items():
        _replace(torch.cuda, name, always(result))
    # These would start the device once torch is told that it is available.
    _replace(torch.cuda, "device", NoDevice)
    _replace(torch.accelerator, "is_available", always(result=False))
    _replace(FakeTensorMode, "avoid_device_init", property(always(result=True)))
    _replace(ConstantFolder, "run", _on_cpu(ConstantFolder.run))
    # It makes a zero on the device for each product with a size that is 0: those of a step of no tokens.
    _replace(UniformValueConstantFolder, "__init__", _on_cpu(UniformValueConstantFolder.__init__))
    _replace(fake_tensor, "init_gpu_context", always(None))
    stand_in = driver_for(gpu)
    driver.set_active(stand_in)
    # Kernels set the driver anew when they are compiled.
    _replace(triton_helpers, "set_driver_to_gpu", lambda: driver.set_active(stand_in))


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
    """Mode that makes on the CPU what code would make on `cuda`."""

    @override
    def __torch_dispatch__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        redirected = {name: _to_cpu_device(value) for name, value in (kwargs or {}).items()}
        return func(*map(_to_cpu_device, args), **redirected)


def _to_cpu_device(value: object) -> object:
    is_cuda = isinstance(value, torch.device) and value.type == "cuda"
    return torch.device("cpu") if is_cuda else value


_USED = re.compile(r"Used (\d+) registers")
_SPILLED = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")


def compile_candidates(function: Function, numels: Mapping[str, int]) -> Iterator[Candidate]:
    """Yield each configuration that autotuning would try, for sizes `numels` by prefix (`x`, `r0_`).

    Raises `MachineError` where ptxas cannot be run.
    """
    # The static launcher would load what it compiles. Torch 2.10 has no `use_static_triton_launcher`, which
    # is another name of this option in later ones.
    with config.patch(use_static_cuda_launcher=False):
        autotuner = getattr(PyCodeCache.load(function.source), function.name)
        autotuner.precompile(warm_cache_only=True)
    sizes = {f"{prefix}numel": value for prefix, value in numels.items()}
    for result in autotuner.compile_results:
        chosen = result.config
        blocks = [f"{name}={value}" for name, value in chosen.kwargs.items()]
        x, y, z = GridExpr.from_meta(autotuner.inductor_meta, chosen).eval_slow(sizes)
        registers, spills = _registers_and_spills(result.kernel)
        yield Candidate(
            config=" ".join([*blocks, f"warps={chosen.num_warps}", f"stages={chosen.num_stages}"]),
            grid=(int(x), int(y), int(z)),
            registers=registers,
            spills=spills,
            shared=int(result.kernel.metadata.shared),
        )


def _registers_and_spills(kernel: Any) -> tuple[int, int]:  # noqa: ANN401  # triton.compiler.CompiledKernel
    """Return registers for each thread, and bytes of local memory that spilling stores and loads."""
    architecture = re.search(r"\.target (sm_(\d+)\w*)", kernel.asm["ptx"])
    assert architecture is not None, "PTX without a target"
    # Triton has two from 3.6 on, and returns the one that knows the PTX which it generates for this target.
    tool = get_ptxas(int(architecture[2])).path
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "kernel.ptx"
        source.write_text(kernel.asm["ptx"])
        command: list[str | Path] = [
            tool,
            "-v",
            f"--gpu-name={architecture[1]}",
            source,
            "-o",
            source.with_suffix(".cubin"),
        ]
        report = subprocess.run(command, capture_output=True, text=True, check=False).stderr
    used, spilled = _USED.search(report), _SPILLED.search(report)
    if used is None or spilled is None:
        raise MachineError(f"Triton's ptxas did not say what a kernel uses: {report.strip() or 'no word'}")
    return int(used[1]), sum(map(int, spilled.groups()))


_DLPACK_CUDA = 2
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
        moved = _on_cuda(tensor.detach())
        self._on_host[_geometry(moved)] = tensor
        return moved

    def parameter(self, parameter: nn.Parameter) -> nn.Parameter:
        """Return the same for a parameter of any shape; always the same object, since guards may look."""
        known = self._parameters.get(id(parameter))
        if known is None:
            moved = nn.Parameter(self.on_gpu(parameter.data), requires_grad=parameter.requires_grad)
            known = self._parameters[id(parameter)] = (parameter, moved)
        return known[1]

    def on_host(self, argument: object) -> object:
        """Return the tensor of the CPU that has the memory of one on `cuda:0`; anything else as it is.

        Raises `MachineError` for a tensor of any shape that was not made here.
        """
        if not isinstance(argument, Tensor) or argument.device.type != "cuda":
            return argument
        tensor = self._on_host.get(_geometry(argument))
        if tensor is None:
            raise MachineError(
                f"torch {torch.__version__} calls a graph with a tensor {tuple(argument.shape)} of "
                f"{argument.device} that is no argument of it: look at what it makes of inputs before it "
                "calls the code of Inductor, and change deepstack_harness/compile/torch_compat/fake_gpu.py"
            )
        return tensor

    @contextmanager
    def holding(self, module: nn.Module) -> Iterator[Callable[[Tensor], Tensor]]:
        """Give a module parameters and buffers on `cuda:0` while open; yield the function for its inputs.

        Tensors may have any shape. The memory stays the same, so that a buffer that is written between two
        steps has its new rows.
        """
        with holding(module, self.parameter, self.on_gpu):
            yield self.on_gpu


def _geometry(tensor: Tensor) -> Geometry:
    return tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype


def _on_cuda(tensor: Tensor) -> Tensor:
    """Return a tensor on `cuda:0` over the memory of a CPU tensor, which lives as long as it."""
    capsule = torch._C._to_dlpack(tensor)
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    device = _Head.from_address(pointer(capsule, _CAPSULE)).device
    device.kind, device.index = _DLPACK_CUDA, 0
    with patch.object(torch.cuda, "_lazy_init", always(None)):  # it would look for a driver
        moved = torch._C._from_dlpack(capsule)
    if moved.device.type != "cuda" or moved.data_ptr() != tensor.data_ptr():
        raise MachineError(
            f"torch {torch.__version__} made a tensor of {moved.device} of memory that was said to be "
            "of cuda: guards that are kept need a CPU build that takes DLPack at its word"
        )
    return moved
