"""GPUs that code is generated for without having them, and the torch and triton that can do it. No torch.

`GPUS` has the properties that Inductor and Triton read before they generate code. Whether a real GPU runs the
predicted kernels is a case marked `gpu` (cases/test_kernels.py). `ENVIRONMENT` is that of a worker that
interprets Triton source; it is needed before the worker starts.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from packaging.version import Version

from deepstack_harness.catalogue.versions import VERSIONS, installed_version, minor
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


PAIRS: Mapping[str, str] = {entry.torch: entry.triton for entry in VERSIONS.entries}
"""torch minor version -> the triton minor version it is released with.

Code was generated for an H200 and interpreted with each of these pairs. What that rests on is private to
both; `moved.MOVED` has the differences. Another pair is tried, and `unchecked` reports it.
"""


def check_support() -> None:
    """Raise `MachineError` where torch or triton is missing, or older than `PAIRS`; import neither."""
    torch, triton = installed_version("torch"), installed_version("triton")
    if torch is None:
        raise MachineError("code for a GPU that is not here needs torch, which is not installed")
    wanted = PAIRS.get(minor(torch))
    if triton is None:
        raise MachineError(
            f"code for a GPU that is not here needs the package triton{f' {wanted}' if wanted else ''}: "
            f"python -m pip install --no-deps 'triton{f'=={wanted}.*' if wanted else ''}'"
        )
    oldest = next(iter(PAIRS.items()))
    if any(Version(have) < Version(least) for have, least in zip((torch, triton), oldest, strict=True)):
        raise MachineError(
            f"torch {torch} with triton {triton} is older than what generates code for a GPU that is not "
            f"here; known are {_known()}"
        )


def unchecked(torch: str | None = None, triton: str | None = None) -> str:
    """Return a sentence where two versions, or else the installed ones, are no pair of `PAIRS`; else ""."""
    torch, triton = torch or installed_version("torch") or "", triton or installed_version("triton") or ""
    if PAIRS.get(minor(torch)) == minor(triton):
        return ""
    return (
        f"torch {torch} with triton {triton} was never checked: do not rely on a figure before "
        f"cases/test_h200.py is green with it; known are {_known()}"
    )


@contextmanager
def naming_what_moved() -> Iterator[None]:
    """Raise `MachineError` for a private name that this torch or triton does not have."""
    try:
        yield
    except (ImportError, AttributeError) as error:
        raise MachineError(
            f"torch {installed_version('torch')} with triton {installed_version('triton')} lacks a name that "
            f"code for a GPU that is not here needs: {error}; known are {_known()}"
        ) from error


def _known() -> str:
    return ", ".join(f"torch {torch} with triton {triton}" for torch, triton in PAIRS.items())


def why_not(check: Callable[[], None] = check_support) -> str:
    """Return the sentence that `check` raises; empty where it raises nothing."""
    try:
        check()
    except MachineError as error:
        return str(error)
    return ""


ENVIRONMENT = {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
"""Environment of a worker with interpreted sessions: triton reads the first when it is imported."""


def environment_in(folder: str) -> dict[str, str]:
    """Return the environment of a worker that interprets, with compile caches of its own in `folder`."""
    caches = {"TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor", "TRITON_CACHE_DIR": f"{folder}/triton"}
    return {**ENVIRONMENT, **caches}


def interprets_here() -> bool:
    """Return whether this process was started with `ENVIRONMENT`."""
    return os.environ.get("TRITON_INTERPRET") == "1"
