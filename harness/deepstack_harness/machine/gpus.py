"""The GPUs that a run may use, as opaque strings: chosen before torch is imported in this process."""

import os
from collections.abc import Sequence

from deepstack_harness.errors import MachineError
from deepstack_harness.workers.limits import Limits
from deepstack_harness.workers.outcomes import Answered, RaisedInWorker, WorkerEnd
from deepstack_harness.workers.worker import call_once

VISIBLE = "CUDA_VISIBLE_DEVICES"
_COUNT = "deepstack_harness.machine.gpus:count_gpus"
_COUNTING_S = 120.0


def visible_gpus() -> list[str]:
    """Return the caller's own list (indices, UUIDs, MIG names), or the indices of all that torch sees.

    A list ends where CUDA ends it: at -1.  Raises `MachineError` where there is no GPU.
    """
    listed = os.environ.get(VISIBLE)
    names = _counted() if listed is None else [name.strip() for name in listed.split(",")]
    names = names[: names.index("-1")] if "-1" in names else names
    found = [name for name in names if name]
    if not found:
        where = "torch sees none" if listed is None else f"{VISIBLE} is '{listed}'"
        raise MachineError(f"there is no GPU to run on: {where}; use --device cpu")
    return found


def count_gpus() -> int:
    """Return the number of GPUs that torch sees; for a worker."""
    import torch

    return torch.cuda.device_count()


def _counted() -> list[str]:
    # In a worker: a process that has asked for its GPUs cannot be told afterwards which ones to see.
    match call_once(_COUNT, limits=Limits(call_s=_COUNTING_S)):
        case Answered(value=count):
            return [str(index) for index in range(count)]
        case (RaisedInWorker() | WorkerEnd()) as result:
            raise MachineError(f"torch cannot count the GPUs: {result.sentence}; use --device cpu")


def seeing(gpus: Sequence[str]) -> dict[str, str]:
    """Return the environment of a process that sees these GPUs alone."""
    return {VISIBLE: ",".join(gpus)}
