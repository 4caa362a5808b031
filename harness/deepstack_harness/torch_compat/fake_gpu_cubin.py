"""Compiles generated Triton kernels for a GPU that is not there: registers, spills, shared memory, grid.

Inside `deepstack_harness.torch_compat.fake_gpu.pretend` only.  Inductor's autotuner compiles
each of its candidates without loading it (`CachingAutotuner.precompile`, as its
compile workers do); what ptxas says of each is asked of the ptxas that Triton
brings, since the cubin itself does not tell of spills.
"""

import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torch._inductor import config
from torch._inductor.codecache import PyCodeCache
from torch._inductor.runtime.triton_heuristics import GridExpr
from triton.backends.nvidia.compiler import get_ptxas

from deepstack_harness.contract.facts.kernels import Candidate
from deepstack_harness.errors import MachineError
from deepstack_harness.torch_compat.lowering import Function

_USED = re.compile(r"Used (\d+) registers")
_SPILLED = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")


def compile_candidates(function: Function, numels: Mapping[str, int]) -> Iterator[Candidate]:
    """Yield each configuration that autotuning would try, for sizes `numels` by prefix (`x`, `r0_`).

    Raises `MachineError` where ptxas cannot be run.
    """
    # The static launcher would load what it compiles.
    with config.patch(use_static_triton_launcher=False):
        autotuner = getattr(PyCodeCache.load(function.source), function.name)
        autotuner.precompile(warm_cache_only=True)
    for result in autotuner.compile_results:
        registers, spills = _asked_of_ptxas(result.kernel)
        yield Candidate(
            config=_named(result.config),
            grid=_grid(autotuner.inductor_meta, result.config, numels),
            registers=registers,
            spills=spills,
            shared=int(result.kernel.metadata.shared),
        )


def _named(chosen: Any) -> str:  # noqa: ANN401  # triton.Config
    blocks = [f"{name}={value}" for name, value in chosen.kwargs.items()]
    return " ".join([*blocks, f"warps={chosen.num_warps}", f"stages={chosen.num_stages}"])


# `meta` is an InductorMeta for type checkers from torch 2.14 on, and a dict before; `chosen` a triton.Config.
def _grid(meta: Any, chosen: Any, numels: Mapping[str, int]) -> tuple[int, int, int]:  # noqa: ANN401
    sizes = {f"{prefix}numel": value for prefix, value in numels.items()}
    x, y, z = GridExpr.from_meta(meta, chosen).eval_slow(sizes)
    return int(x), int(y), int(z)


def _asked_of_ptxas(kernel: Any) -> tuple[int, int]:  # noqa: ANN401  # triton.compiler.CompiledKernel
    """Return registers for each thread, and bytes of local memory that spilling stores and loads."""
    architecture = re.search(r"\.target (sm_(\d+)\w*)", kernel.asm["ptx"])
    assert architecture is not None, "PTX without a target"
    # Triton has two from 3.6 on, and says which one knows the PTX that it generates for this target.
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
        said = subprocess.run(command, capture_output=True, text=True, check=False).stderr
    used, spilled = _USED.search(said), _SPILLED.search(said)
    if used is None or spilled is None:
        raise MachineError(f"Triton's ptxas did not say what a kernel uses: {said.strip() or 'no word'}")
    return int(used[1]), sum(map(int, spilled.groups()))
