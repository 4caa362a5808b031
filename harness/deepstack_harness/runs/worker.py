"""The work of a worker that plays the tasks of a group: model, compiled code and caches stay warm."""

import time
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from typing import Any

import msgspec
import torch

from deepstack_harness.play.cells import Runner
from deepstack_harness.runs.case_record import played
from deepstack_harness.runs.task_result import Done, Ending
from deepstack_harness.runs.tasks import Task


def play(task: Mapping[str, Any]) -> dict[str, Any]:
    """Play a `Task` and return `{"done": Done, "fit": bool}`, both as JSON.

    `fit` is False where the worker must not be used again.
    """
    torch.set_num_threads(1)
    parsed = msgspec.convert(task, Task)
    started = time.perf_counter()
    cell = _runner().play(parsed.planned)
    done = played(parsed, cell, time.perf_counter() - started)
    fit = Ending(done.case.ending).is_whole and _device_works(done)
    return {"done": msgspec.to_builtins(done), "fit": fit}


@cache
def _runner() -> Runner:
    return Runner()


def _device_works(done: Done) -> bool:
    """Return False for a GPU that does not answer: after some errors every later call of a process fails."""
    if not done.case.device.startswith("cuda"):
        return True
    with suppress(RuntimeError):
        torch.cuda.synchronize()
        return True
    return False
