"""Record the kernels that a GPU was told to run, and their grids: from torch's profiler, on CUDA only."""

import json
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from deepstack_harness.contract.facts.kernels import GraphCall, Kernel
from deepstack_harness.errors import NotMeasured


@dataclass(frozen=True)
class KernelLaunch:
    """One launch: the kernel's name, and its grid in blocks."""

    kernel: str
    grid: tuple[int, int, int]


def launched(run: Callable[[], object]) -> list[KernelLaunch]:
    """Return the launches of `run` in the order they started.

    Call `run` once before, so that autotuning is over.

    Raises `NotMeasured` where the profiler saw none.
    """
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        run()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        seen.export_chrome_trace(str(path))
        found = read_launches(path.read_bytes())
    if not found:
        raise NotMeasured("the profiler saw no kernel on the GPU")
    return found


def read_launches(trace: bytes) -> list[KernelLaunch]:
    """Read the launches in a trace of `torch.profiler` (Chrome's format: events of category `kernel`)."""
    events = [event for event in json.loads(trace)["traceEvents"] if event.get("cat") == "kernel"]
    events.sort(key=lambda event: event["ts"])
    return [KernelLaunch(event["name"], tuple(event["args"]["grid"])) for event in events]


def with_grids(calls: Iterable[GraphCall], launches: Iterable[KernelLaunch]) -> tuple[GraphCall, ...]:
    """Return the calls with the grid of each Triton kernel.

    Raises `NotMeasured` where a kernel was not launched, or in another order.
    """
    left = iter(launches)
    return tuple(
        replace(call, kernels=tuple(_with_grid(kernel, left) for kernel in call.kernels)) for call in calls
    )


def _with_grid(kernel: Kernel, left: "Iterable[KernelLaunch]") -> Kernel:
    if kernel.function is None:
        return kernel
    # Launches of libraries lie between; what is passed over belongs to them.
    found = next((launch for launch in left if launch.kernel == kernel.function), None)
    if found is None:
        raise NotMeasured(
            f"kernel {kernel.function} was generated and not launched, or launched out of order"
        )
    return replace(kernel, grid=found.grid)
