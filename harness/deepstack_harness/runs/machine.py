"""The machine of a run: versions, devices, commit and settings, and the GPUs that a run may use.

torch is not imported in this process, so that the GPUs which it sees can still be chosen.
"""

import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from deepstack_harness.catalogue.versions import installed_version
from deepstack_harness.errors import MachineError
from deepstack_harness.workers.limits import Limits
from deepstack_harness.workers.outcomes import Answered, RaisedInWorker, WorkerEnd
from deepstack_harness.workers.remote import Remote
from deepstack_harness.workers.supervised import Command, run_command
from deepstack_harness.workers.worker import Worker

_SETTINGS = (
    "AOT", "ATEN_", "CUDA", "CXX", "DEEPSTACK_HARNESS", "DNNL_", "INDUCTOR_", "KMP_", "LD_PRELOAD", "MKL_",
    "NCCL", "NVIDIA_VISIBLE", "OMP_", "ONEDNN_", "PARTITIONER_", "PYTORCH", "TENSORIFY_", "TORCH", "TRITON",
    "_TORCHINDUCTOR",
)  # fmt: skip
"""Beginnings of the names of environment variables that change what is measured.

From the names that torch 2.13 reads in `_dynamo`, `_inductor`, `_functorch` and `_logging`.
"""
_COMMAND_LIMITS = Limits(call_s=20.0)
"""`nvidia-smi` does not return while a GPU has fallen off the bus."""


@dataclass(frozen=True)
class Environment:
    """Place of a run: versions, names of devices, the commit of the working directory, settings.

    What cannot be found out is None, or empty.
    """

    python: str
    torch: str | None
    triton: str | None
    platform: str
    cpu: str
    device: tuple[str, ...]
    driver: str | None
    commit: str | None
    settings: Mapping[str, str]


def environment() -> Environment:
    """Return the environment of this process."""
    gpus = _output_of("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader").splitlines()
    return Environment(
        python=platform.python_version(),
        torch=installed_version("torch"),
        triton=installed_version("triton"),
        platform=platform.platform(),
        cpu=f"{_cpu()}, {os.cpu_count()} cores",
        device=tuple(line.rpartition(",")[0].strip() for line in gpus),
        driver=gpus[0].rpartition(",")[2].strip() if gpus else None,
        commit=_commit(),
        settings={name: os.environ[name] for name in sorted(os.environ) if name.startswith(_SETTINGS)},
    )


def _cpu() -> str:
    """Return the processor's name; on Linux `platform` only knows the architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def _commit() -> str | None:
    """Return the commit of the working directory, with `-dirty` where it has changes."""
    commit = _output_of("git", "rev-parse", "HEAD").strip()
    if not commit:
        return None
    return f"{commit}-dirty" if _output_of("git", "status", "--porcelain", "--untracked-files=no") else commit


def _output_of(*words: str) -> str:
    """Return what a command prints; nothing where it is not there, fails, or takes too long."""
    try:
        end = run_command(Command(words, stderr=False), _COMMAND_LIMITS)
    except (OSError, MachineError):
        return ""
    return end.output if end.status == 0 else ""


VISIBLE = "CUDA_VISIBLE_DEVICES"
_COUNT = Remote("deepstack_harness.runs.machine:count_gpus", int)
_COUNTING_S = 120.0
"""Seconds to import torch and count GPUs, from a cold disk too. After them no GPU is used."""


def visible_gpus() -> list[str]:
    """Return the caller's own list (indices, UUIDs, MIG names), or the indices of all that torch sees.

    A list ends where CUDA ends it: at -1. Raises `MachineError` where there is no GPU.
    """
    listed = os.environ.get(VISIBLE)
    names = _count_in_worker() if listed is None else [name.strip() for name in listed.split(",")]
    names = names[: names.index("-1")] if "-1" in names else names
    gpus = [name for name in names if name]
    if not gpus:
        where = "torch sees none" if listed is None else f"{VISIBLE} is '{listed}'"
        raise MachineError(f"there is no GPU to run on: {where}; use --device cpu")
    return gpus


def count_gpus() -> int:
    """Return the number of GPUs that torch sees; for a worker."""
    import torch

    return torch.cuda.device_count()


def _count_in_worker() -> list[str]:
    # In a worker: once a process has counted its GPUs, the ones that it sees cannot be changed.
    with Worker(Limits(call_s=_COUNTING_S)) as worker:
        counted = worker.call(_COUNT)
    match counted:
        case Answered(value=count):
            return [str(index) for index in range(count)]
        case (RaisedInWorker() | WorkerEnd()) as result:
            raise MachineError(f"torch cannot count the GPUs: {result.sentence}; use --device cpu")
