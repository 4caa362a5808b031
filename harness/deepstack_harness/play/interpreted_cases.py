"""Cases whose Triton source is interpreted: played in a worker, since triton asks once, when imported."""

import atexit
import tempfile
from functools import cache

from deepstack_harness.arms.interpreter_environment import environment_in
from deepstack_harness.contract.case import Case
from deepstack_harness.contract.observation import Observation
from deepstack_harness.errors import UsageError
from deepstack_harness.play.case_worker import CaseWorker, observation_of
from deepstack_harness.play.in_process import NOTHING_BOUND, Bound
from deepstack_harness.torch_compat.target_support import check_interpreter
from deepstack_harness.workers.limits import Limits

_LIMITS = Limits(start_s=300.0, call_s=1800.0)
"""A step of 17 tokens takes half a second of processor time, and generating its graph 15."""


def play_interpreted(case: Case, bound: Bound = NOTHING_BOUND) -> Observation:
    """Play a case in the worker that all such cases of this process share.

    Raises `UsageError` for a buffer that is alive in this process, and for another device than the CPU;
    `MachineError` where torch and triton do not fit, or are missing.
    """
    if case.buffer in bound:
        raise UsageError(
            f"'{case.buffer.name}' cannot be played under arm {case.arm.name}: its worker is a process of "
            "its own, which finds only buffers that are named in the registry"
        )
    if case.device != "cpu":
        raise UsageError(f"arm {case.arm.name} interprets on the CPU: leave --device {case.device} out")
    check_interpreter()
    return observation_of(case, _worker().play(case))


@cache
def _worker() -> CaseWorker:
    folder = tempfile.TemporaryDirectory(prefix="deepstack-h200-", ignore_cleanup_errors=True)
    worker = CaseWorker(_LIMITS, environment_in(folder.name))
    atexit.register(folder.cleanup)
    atexit.register(worker.close)  # before the folder goes: the last one registered runs first
    return worker
