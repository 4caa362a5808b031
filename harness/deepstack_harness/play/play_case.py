"""Play a case where its arm needs it: in this process, among ranks, or where Triton's code is interpreted.

Interpreted cases share a warm worker, since triton reads TRITON_INTERPRET once, when it is imported. A few
ranks have processes of their own; of many ranks a sample is played in this process.
"""

import atexit
import tempfile
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

from deepstack_harness.compile.torch_compat.modes import fake_world
from deepstack_harness.compile.torch_compat.targets import check_support, environment_in, interprets_here
from deepstack_harness.contract.case import Case, Compare
from deepstack_harness.contract.observation import Observation
from deepstack_harness.contract.trace import DTYPES
from deepstack_harness.errors import UsageError
from deepstack_harness.play.model import NOTHING_BOUND, Bound, factory_of, shared_model
from deepstack_harness.play.observe import OnProgress, play

if TYPE_CHECKING:
    from deepstack_harness.play.case_worker import CaseWorker


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
    from deepstack_harness.play.case_worker import observation_of

    check_support()
    return observation_of(case, _interpreting_worker().play(case))


@cache
def _interpreting_worker() -> "CaseWorker":
    from deepstack_harness.play.case_worker import CaseWorker
    from deepstack_harness.workers.limits import Limits

    # Measured: one step of 17 tokens takes 0.5 s of processor time interpreted, and its compilation 15 s.
    limits = Limits(start_s=300.0, call_s=1800.0)
    folder = tempfile.TemporaryDirectory(prefix="deepstack-h200-", ignore_cleanup_errors=True)
    worker = CaseWorker(limits, environment=environment_in(folder.name))
    atexit.register(folder.cleanup)
    atexit.register(worker.close)  # before the folder goes: the last one registered runs first
    return worker


LARGEST_WORLD = 4
"""Most ranks that run on a CPU: each is a process of half a gigabyte that imports torch for seconds."""


def play_among_ranks(case: Case, bound: Bound = NOTHING_BOUND) -> Observation:
    """Play a case whose arm has more than one rank.

    On GPUs, and up to four ranks on a CPU, all ranks are real. Of more ranks the first, the middle and
    the last are played in this process, one after the other, in torch's fake process group: the rows that
    they are given are real, their outputs are not, and are not compared. Raises `UsageError` for a case
    that can be played in neither way.
    """
    if case.arm.ranks > LARGEST_WORLD and not case.device.startswith("cuda"):
        return _sampled(case, bound)
    if case.buffer in bound:
        raise UsageError(
            f"'{case.buffer.name}' cannot be played under arm {case.arm.name}: its ranks are "
            "processes of their own, which find only buffers that are named in the registry"
        )
    from deepstack_harness.play.ranks import rank_pool

    return rank_pool().play(case)


def _sampled(case: Case, bound: Bound) -> Observation:
    from deepstack_harness.play.ranks import merged

    ranks = case.arm.ranks
    if case.arm.compiled:
        raise UsageError(
            f"arm {case.arm.name}: more than {LARGEST_WORLD} ranks exchange nothing on a CPU, so there is "
            f"no compiled output to compare; use eager/tp{ranks}"
        )
    quick = replace(case, compare=Compare.EAGER) if case.compare is Compare.ALL else case
    model = shared_model(case.family, case.dtype, case.device, case.seed)
    observations = {}
    for rank in (0, ranks // 2, ranks - 1):
        with fake_world(rank, ranks):
            observation = play(quick, model, factory_of(case.buffer, bound))
        steps = (  # without what was computed from rows of other ranks
            replace(step, distances=None, shards=tuple(replace(shard, stray=None) for shard in step.shards))
            for step in observation.steps
        )
        observations[rank] = replace(observation, steps=tuple(steps))
    return merged(list(observations.values()), list(observations))


def play_case(case: Case, bound: Bound = NOTHING_BOUND, on_progress: OnProgress | None = None) -> Observation:
    """Play a case; raises `UsageError` for an unknown name, `MachineError` for a device that is not here.

    `on_progress` is that of `deepstack_harness.play.observe.play`. It is not called for a case with several
    ranks, nor for one that is interpreted in another process.
    """
    if case.arm.interpreted and not interprets_here():
        return play_interpreted(case, bound)
    if case.arm.ranks > 1:
        return play_among_ranks(case, bound)
    # A buffer of integers has no decoder, and its trace states the dtype of the buffer.
    dtype = case.dtype if case.dtype in DTYPES else DTYPES[0]
    model = shared_model(case.family, dtype, case.device, case.seed)
    return play(case, model, factory_of(case.buffer, bound), on_progress=on_progress)
