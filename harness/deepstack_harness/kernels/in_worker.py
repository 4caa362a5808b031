"""Measures subjects in a child process: pretending a GPU is for good, and a compile is best cold."""

from collections.abc import Sequence

import msgspec

from deepstack_harness import errors
from deepstack_harness.errors import HarnessError, MachineError
from deepstack_harness.kernels.measurement import Measurement
from deepstack_harness.kernels.subject import Subject
from deepstack_harness.kernels.target_support import check_support
from deepstack_harness.kernels.targets import GPUS
from deepstack_harness.workers.isolate import Ending, Outcome, run_isolated

_SECONDS = 600
"""For each subject."""


def measure(subjects: Sequence[Subject]) -> list[Measurement]:
    """The kernels of each subject's step; all have one target, and one child measures them in their order.

    Raises `UsageError` for a wrong subject, `MachineError` where this machine cannot
    measure it, `NotMeasured` where no kernels were seen, and `HarnessError` where the
    child failed in a way that is not foreseen.
    """
    (target,) = {subject.target for subject in subjects}
    if target in GPUS:
        check_support()
    order = {"subjects": msgspec.to_builtins(subjects)}
    outcome = run_isolated(
        "deepstack_harness.kernels.worker:measure_here", order, timeout_s=_SECONDS * len(subjects)
    )
    if outcome.ending is not Ending.RETURNED:
        raise _failure(target, outcome)
    if "refused" in outcome.value:
        kind, sentence = outcome.value["refused"]
        raise getattr(errors, kind)(sentence)
    return msgspec.convert(outcome.value["measured"], list[Measurement])


def _failure(target: str, outcome: Outcome) -> HarnessError:
    kind = HarnessError if outcome.ending is Ending.RAISED else MachineError
    return kind(f"measuring kernels for target '{target}': {outcome.ending}: {outcome.detail}".rstrip(": "))
