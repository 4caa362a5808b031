"""What a child process that pretends an H200 finds; called by name in a worker."""

import re
import subprocess
import tempfile
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import torch

from cases.selftest.compile.toys import TOKENS, inputs, opened, written_back
from deepstack_harness.compile.torch_compat.fake_gpu import pretend
from deepstack_harness.compile.torch_compat.inductor import Lowered, NotRun, cold, watch
from deepstack_harness.compile.torch_compat.modes import without_storage
from deepstack_harness.compile.torch_compat.targets import H200
from deepstack_harness.errors import MachineError


def find() -> dict[str, Any]:
    """Devices of fake tensors, what a launch ends in, and a kernel as two tools of Triton see it."""
    pretend(H200)
    with without_storage():
        fake = torch.ones(2, device="cuda") + 1
    lowered = _lowered()
    from deepstack_harness.compile.torch_compat.fake_gpu import compile_candidates

    function = lowered.functions[0]
    numels = dict.fromkeys(function.numels, TOKENS * 8)
    return {
        "device": str(fake.device),
        "capability": list(torch.cuda.get_device_capability()),
        "kinds": [kernel.kind for kernel in lowered.kernels],
        "functions": [sorted(lowering.operations) for lowering in lowered.functions],
        "kernels": [list(kernel.operations) for kernel in lowered.kernels],
        "candidates": [
            [candidate.registers, candidate.spills, candidate.shared, *candidate.grid]
            for candidate in compile_candidates(function, numels)
        ],
        "dumped": [*map(list, _dumped(function.source, function.name))],
        "target": re.findall(r"cc=(\d+)", function.source),
        "launch": _launch(function.source, function.name),
        "again": _again(),
    }


def _lowered() -> Lowered:
    with ExitStack() as stack:
        stack.enter_context(cold(run=False))
        stack.enter_context(torch.no_grad())
        stack.enter_context(without_storage())
        session = opened(stack, written_back, device="cuda")
        watched = stack.enter_context(watch(["hidden"], run=False))
        with suppress(NotRun):
            session.forward(inputs(TOKENS, "cuda"))
    (lowered,) = watched.graphs
    assert lowered is not None
    return lowered


def _dumped(source: str, name: str) -> list[tuple[int, int]]:
    """Registers and shared memory of each candidate's cubin, as cuobjdump has them."""
    autotuner = _autotuner(source, name)
    autotuner.precompile(warm_cache_only=True)
    return [_resources(result.kernel.asm["cubin"]) for result in autotuner.compile_results]


def _resources(cubin: bytes) -> tuple[int, int]:
    from triton.backends import nvidia

    tool = Path(nvidia.__file__).parent / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        said = subprocess.run(
            [tool, "-res-usage", file.name], capture_output=True, text=True, check=True
        ).stdout
    found = re.search(r"REG:(\d+) .*SHARED:(\d+)", said)
    assert found, said
    return int(found[1]), int(found[2])


def _launch(source: str, name: str) -> str:
    try:
        _autotuner(source, name).precompile()
    except RuntimeError as error:
        return str(error)
    return "nothing was refused"


def _again() -> str:
    """A second pretence: in a process that has one, there is a GPU."""
    try:
        pretend(H200)
    except MachineError as error:
        return str(error)
    return "nothing was refused"


def _autotuner(source: str, name: str) -> Any:  # noqa: ANN401  # CachingAutotuner
    from torch._inductor.codecache import PyCodeCache  # noqa: TID251  # as generated code is loaded

    return getattr(PyCodeCache.load(source), name)
