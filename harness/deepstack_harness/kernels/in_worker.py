"""Measure subjects in a worker process: pretending a GPU cannot be undone, and a compile is best cold."""

from collections.abc import Sequence

import msgspec

from deepstack_harness.arms.interpreter_environment import ENVIRONMENT
from deepstack_harness.kernels.measurement import Measurement
from deepstack_harness.kernels.subject import Subject
from deepstack_harness.torch_compat.target_support import check_interpreter, check_support
from deepstack_harness.torch_compat.targets import GPUS
from deepstack_harness.workers.limits import Limits
from deepstack_harness.workers.outcomes import value_of
from deepstack_harness.workers.worker import Worker

_WORK = "deepstack_harness.kernels.worker:measure_here"
_SUBJECT_S = 600.0
"""Seconds for one subject."""


def measure(subjects: Sequence[Subject]) -> list[Measurement]:
    """Measure the kernels of each subject's step; all subjects have one target, and share one worker.

    Raises `UsageError` for a wrong subject, `MachineError` where this machine cannot measure it or the
    worker ended, `NotMeasured` where no kernels were seen, and `HarnessError` for any other exception.
    """
    (target,) = {subject.target for subject in subjects}
    (executes,) = {subject.execute for subject in subjects}
    if target in GPUS:
        check_interpreter() if executes else check_support()
    limits = Limits(call_s=_SUBJECT_S * len(subjects))
    module, environment = _WORK.partition(":")[0], ENVIRONMENT if executes else None
    with Worker(limits, preload=module, environment=environment) as worker:
        result = worker.call(_WORK, {"subjects": msgspec.to_builtins(subjects)})
    found = value_of(result, f"measuring kernels for target '{target}'")
    return msgspec.convert(found, list[Measurement])
