"""Where a run takes place, asked without importing torch."""

import importlib.metadata
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_SETTINGS = (
    "TORCH",
    "PYTORCH",
    "TRITON",
    "CUDA",
    "NVIDIA_VISIBLE",
    "NCCL",
    "OMP_",
    "MKL_",
    "DEEPSTACK_HARNESS",
)
"""Beginnings of the names of environment variables that change what is measured."""
_PATIENCE_S = 20


@dataclass(frozen=True)
class Environment:
    """Where a run took place: versions, names of devices, the commit of the working directory, settings."""

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
    """What this process sees; what cannot be found out is None, or empty."""
    gpus = _said_by("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader").splitlines()
    return Environment(
        python=platform.python_version(),
        torch=_version("torch"),
        triton=_version("triton"),
        platform=platform.platform(),
        cpu=f"{_cpu()}, {os.cpu_count()} cores",
        device=tuple(line.rpartition(",")[0].strip() for line in gpus),
        driver=gpus[0].rpartition(",")[2].strip() if gpus else None,
        commit=_commit(),
        settings={name: os.environ[name] for name in sorted(os.environ) if name.startswith(_SETTINGS)},
    )


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cpu() -> str:
    """The processor's name; `platform` gives the architecture alone on Linux."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def _commit() -> str | None:
    """Of the working directory, with `-dirty` where it has changes."""
    commit = _said_by("git", "rev-parse", "HEAD").strip()
    if not commit:
        return None
    return f"{commit}-dirty" if _said_by("git", "status", "--porcelain", "--untracked-files=no") else commit


def _said_by(*command: str) -> str:
    """What a command prints; nothing where it is not there, fails, or takes too long."""
    try:
        return _run(command)
    except (OSError, subprocess.SubprocessError):
        return ""


def _run(command: Sequence[str]) -> str:
    ran = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE_S, check=True)
    return ran.stdout
