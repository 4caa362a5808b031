"""GPUs that code is generated for without having them, and the torch and triton that can do it.  No torch.

`GPUS` has the properties that Inductor and Triton ask for before they generate code.  Whether a real GPU runs
the predicted kernels is a case marked `gpu` (cases/test_kernels.py).  `ENVIRONMENT` is that of a worker that
interprets Triton source; it is needed before the worker starts.
"""

import importlib.metadata
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from deepstack_harness.errors import MachineError


@dataclass(frozen=True)
class GpuProperties:
    """Figures of one GPU, as `torch.cuda.get_device_properties` gives them on a real one.

    `capability` is (major, minor); memory in bytes, registers of 32 bits.
    """

    name: str
    capability: tuple[int, int]
    multiprocessors: int
    memory: int
    l2_cache: int
    shared_per_block: int
    shared_per_block_optin: int
    shared_per_multiprocessor: int
    registers_per_multiprocessor: int = 65536
    threads_per_multiprocessor: int = 2048
    threads_per_block: int = 1024
    warp_size: int = 32

    @property
    def architecture(self) -> int:
        """90 for capability (9, 0)."""
        major, minor = self.capability
        return 10 * major + minor


H200 = GpuProperties(
    name="NVIDIA H200",
    capability=(9, 0),
    multiprocessors=132,
    memory=141 * 2**30,
    l2_cache=60 * 2**20,
    shared_per_block=48 * 2**10,
    shared_per_block_optin=227 * 2**10,
    shared_per_multiprocessor=228 * 2**10,
)
"""NVIDIA's data sheet and the CUDA C++ Programming Guide's table for compute capability 9.0."""

GPUS: Mapping[str, GpuProperties] = {"h200": H200}


SUPPORTED: Mapping[str, str] = {"2.11": "3.6", "2.13": "3.7", "2.15": "3.9"}
"""torch minor version -> the triton minor version it is released with.

These pairs were run; what is generated rests on private parts of both, so others
are refused until they were.
"""

INTERPRETED: Mapping[str, str] = {"2.13": "3.7", "2.15": "3.9"}
"""The pairs with which generated code was interpreted, too: the interpreter's private parts are others."""


def check_interpreter() -> None:
    """Raise `MachineError` unless code was interpreted with this torch and triton; import neither."""
    check_support()
    torch = _minor(_version("torch") or "")
    if torch not in INTERPRETED:
        known = ", ".join(f"torch {torch} with triton {triton}" for torch, triton in INTERPRETED.items())
        raise MachineError(
            f"code for a GPU that is not here was never interpreted with torch {torch}; known is {known}"
        )


def check_support() -> None:
    """Raise `MachineError` unless torch and triton fit together; import neither."""
    torch, triton = _version("torch"), _version("triton")
    known = ", ".join(f"torch {torch} with triton {triton}" for torch, triton in SUPPORTED.items())
    if torch is None or _minor(torch) not in SUPPORTED:
        raise MachineError(f"torch {torch} has not been tested for a GPU that is not here; known are {known}")
    wanted = SUPPORTED[_minor(torch)]
    if triton is None:
        raise MachineError(
            f"code for a GPU that is not here needs the package triton {wanted}: "
            f"python -m pip install --no-deps 'triton=={wanted}.*'"
        )
    if _minor(triton) != wanted:
        raise MachineError(f"torch {torch} needs triton {wanted}, here is {triton}; known are {known}")


def why_not(check: Callable[[], None] = check_support) -> str:
    """Return the sentence that `check` raises; empty where it raises nothing."""
    try:
        check()
    except MachineError as error:
        return str(error)
    return ""


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


ENVIRONMENT = {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
"""Environment of a worker with interpreted sessions: triton reads the first when it is imported."""


def environment_in(folder: str) -> dict[str, str]:
    """Return the environment of a worker that interprets, with compile caches of its own in `folder`."""
    caches = {"TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor", "TRITON_CACHE_DIR": f"{folder}/triton"}
    return {**ENVIRONMENT, **caches}


def interprets_here() -> bool:
    """Return True in a process that was started with `ENVIRONMENT`."""
    return os.environ.get("TRITON_INTERPRET") == "1"
