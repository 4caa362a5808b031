"""The work of a worker that measures kernels: prepare the process for a target, measure its subjects.

torch is imported after the target's environment variables are set, because it reads them then.
"""

import os
import resource
import tempfile
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

import msgspec

from deepstack_harness.kernels.measurement import Cost, Measurement
from deepstack_harness.kernels.subject import CPU, CUDA, Subject
from deepstack_harness.torch_compat.targets import GPUS


def measure_here(subjects: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the `Measurement` of each of these `Subject`s, which have one target; both as JSON."""
    asked = msgspec.convert(subjects, list[Subject])
    with tempfile.TemporaryDirectory(prefix="deepstack-kernels-", ignore_cleanup_errors=True) as folder:
        _prepare(asked[0], folder)
        return [msgspec.to_builtins(_measure(one)) for one in asked]


def _prepare(asked: Subject, folder: str) -> None:
    # Caches of its own: Inductor does not generate code again that an earlier run left in a cache.
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = f"{folder}/inductor"
    os.environ["TRITON_CACHE_DIR"] = f"{folder}/triton"
    if asked.target in GPUS and not asked.execute:  # what is interpreted prepares by itself
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        from deepstack_harness.torch_compat.fake_gpu import pretend

        pretend(GPUS[asked.target])


def _measure(asked: Subject) -> Measurement:
    import torch

    from deepstack_harness.kernels.measure import measure_step

    torch.set_num_threads(1)
    started, used = time.monotonic(), _processor_seconds()
    step = measure_step(asked)
    return Measurement(
        family=step.family,
        calls=step.facts.calls,
        graphs=step.facts.graphs,
        torch=str(torch.__version__),
        triton=None if asked.target == CPU else version("triton"),
        device=_device(asked.target),
        cost=Cost(
            seconds=time.monotonic() - started,
            processor_seconds=_processor_seconds() - used,
            peak_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        ),
        accesses=step.accesses,
        step_seconds=step.seconds,
    )


def _device(target: str) -> str:
    import torch

    if target == CUDA:
        return torch.cuda.get_device_name()
    return GPUS[target].name if target in GPUS else target


def _processor_seconds() -> float:
    """Return what this process used, and the compilers that it started and waited for."""
    spent = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in spent)
