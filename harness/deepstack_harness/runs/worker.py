"""The work of a worker that plays the cases of a group: model, compiled code and caches stay warm."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import msgspec
import torch

from deepstack_harness.contract.case import Case
from deepstack_harness.play.play_case import play_case


def play(case: Mapping[str, Any]) -> dict[str, Any]:
    """Play a `Case` and return `{"observation": Observation, "device_works": bool}`; all of it is JSON.

    `device_works` is False for a GPU that does not answer: after some errors every later call of a
    process fails, so the worker must not be used again.
    """
    torch.set_num_threads(1)
    parsed = msgspec.convert(case, Case)
    seen = play_case(parsed)
    return {"observation": msgspec.to_builtins(seen), "device_works": _device_works(parsed.device)}


def _device_works(device: str) -> bool:
    if not device.startswith("cuda"):
        return True
    with suppress(RuntimeError):
        torch.cuda.synchronize()
        return True
    return False
