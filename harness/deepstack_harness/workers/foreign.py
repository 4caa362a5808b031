"""Workers for code under test: the sandbox profile that fits the code, its arm and its device.

Every command that runs code of a source or of a user starts its worker with `foreign_worker`, or gives
`Worker` the profile that `profile_of` returns.
"""

from collections.abc import Mapping
from dataclasses import replace

from deepstack_harness.contract.arm_spec import Backend
from deepstack_harness.contract.buffer_ref import BufferKind
from deepstack_harness.contract.case import Case
from deepstack_harness.workers.limits import BY_VARIABLE, Limits
from deepstack_harness.workers.profiles import COMPILE, CONTRACT, CUDA, RANKS, SandboxProfile
from deepstack_harness.workers.worker import Worker

FOREIGN_LIMITS = Limits(
    start_s=300.0, call_s=300.0, memory=8 * 2**30, open_files=1024, file_size=2**30, processes=256,
    raised_by=BY_VARIABLE,
)  # fmt: skip
"""Limits of every worker with foreign code on the CPU; a driver of a GPU maps more memory than this."""
CONTRACT_LIMITS = replace(FOREIGN_LIMITS, call_s=None, step_s=30.0)
"""Limits where nothing is compiled: a call of a method takes microseconds, unless it hangs."""
COMPILE_LIMITS = replace(FOREIGN_LIMITS, call_s=None, step_s=300.0)
"""Limits where a decoder is compiled, which takes seconds on an idle machine."""


def foreign_worker(profile: SandboxProfile, limits: Limits = FOREIGN_LIMITS, *, preload: str | None = None,
                   environment: Mapping[str, str | None] | None = None) -> Worker:  # fmt: skip
    """Start a worker in a sandbox; see `Worker` for the arguments."""
    return Worker(limits, preload=preload, environment=environment, sandbox=profile)


def profile_of(case: Case) -> SandboxProfile | None:
    """Return the strictest profile in which a case can be played; None for a buffer of ours."""
    if case.buffer.kind not in (BufferKind.SOURCE, BufferKind.USER):
        return None
    # A user's class is imported, and what it imports may start processes: triton asks ldconfig.
    imports = case.buffer.kind is BufferKind.USER
    compiles = case.arm.backend is not Backend.NONE
    return profile_for(case.device, ranks=case.arm.ranks, processes=imports or compiles)


def profile_for(device: str, *, ranks: int = 1, processes: bool = True) -> SandboxProfile:
    """Return the strictest profile for a device and a number of ranks; compilers are `processes`."""
    if device.partition(":")[0] != "cpu":
        return CUDA
    if ranks > 1:
        return RANKS
    return COMPILE if processes else CONTRACT
