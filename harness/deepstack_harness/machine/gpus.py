"""The GPUs that a run may use, as opaque strings: picked before torch is imported, never counted by it."""

import os
import subprocess
import sys
from collections.abc import Sequence

from deepstack_harness.errors import MachineError

VISIBLE = "CUDA_VISIBLE_DEVICES"
_PATIENCE_S = 120
_COUNT = "import torch; print(torch.cuda.device_count())"


def visible_gpus() -> list[str]:
    """The caller's own list (indices, UUIDs, MIG names), or all that torch sees.

    A list ends where CUDA ends it: at -1.  Raises `MachineError` for none.
    """
    listed = os.environ.get(VISIBLE)
    names = _counted() if listed is None else [name.strip() for name in listed.split(",")]
    names = names[: names.index("-1")] if "-1" in names else names
    found = [name for name in names if name]
    if not found:
        where = "torch sees none" if listed is None else f"{VISIBLE} is '{listed}'"
        raise MachineError(f"there is no GPU to run on: {where}; use --device cpu")
    return found


def _counted() -> list[str]:
    """In a process of its own: one that has asked for GPUs cannot be told afterwards which to see."""
    try:
        ran = subprocess.run(
            [sys.executable, "-c", _COUNT], capture_output=True, text=True, timeout=_PATIENCE_S, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise MachineError(f"torch cannot be asked for its GPUs: {error}; use --device cpu") from None
    return [str(index) for index in range(int(ran.stdout.split()[-1]))]


def seeing(gpus: Sequence[str]) -> dict[str, str]:
    """The environment of a process that sees these alone."""
    return {VISIBLE: ",".join(gpus)}
