"""The dual-stream helpers of a vLLM source as ways to project: on recording streams, and with torch's own."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from deepstack_harness.errors import UsageError
from deepstack_harness.sources.source import Source
from deepstack_harness.streams.dual_streams import ONE, THREE, TWO, DualStream
from deepstack_harness.streams.helper_code import HelperCode, cut_helpers
from deepstack_harness.streams.model_check import Setting
from deepstack_harness.streams.recorded_device import Device, Event
from deepstack_harness.streams.stream_api import Lanes, Project

BREAKABLE = "BreakableCUDAGraphCapture"
"""From 0.28.0 on the helper asks it, when called, whether a capture is going on (vllm/compilation)."""

IN_CAPTURE = "two streams, while a breakable graph is captured"
DEFAULT_FIRST = "three streams, main one first"


class NoCapture:
    """Stand-in for `BreakableCUDAGraphCapture` while nothing is captured."""

    @staticmethod
    def is_active() -> bool:
        """Return False."""
        return False


class OpenCapture:
    """Stand-in for `BreakableCUDAGraphCapture` while a graph is captured."""

    @staticmethod
    def is_active() -> bool:
        """Return True."""
        return True


class RecordingTorch:
    """Module that cut code knows as `torch`: torch, with streams and events of a recording device."""

    def __init__(self, device: Device) -> None:
        self.cuda = _RecordingCuda(device)

    def __getattr__(self, name: str) -> object:
        """Return torch's own attribute."""
        return getattr(torch, name)


class _RecordingCuda:
    def __init__(self, device: Device) -> None:
        self.stream = device.on
        self.current_stream = lambda *_: device.current
        self.Event = lambda **_: Event(device)

    def __getattr__(self, name: str) -> object:
        return getattr(torch.cuda, name)


def dual_streams_of(source: Source) -> dict[str, DualStream]:
    """Return the functions of `source` that project on several streams, by name; raise as `cut_helpers`."""
    return {code.name: way for code, way in helpers_of(source)}


def helpers_of(source: Source) -> list[tuple[HelperCode, DualStream]]:
    """Return the same functions, each with the code that was cut out: its place, and its arguments."""
    found = cut_helpers(source, {BREAKABLE})
    return [(code, _MAKERS[name](code)) for name, code in found.items()]


def _pair(code: HelperCode) -> DualStream:
    """Call `maybe_execute_in_parallel` with two functions, and perhaps a stream for the second."""
    settings = [Setting(ONE, 0, partial(_recorded, code, _project_pair, NoCapture))]
    settings.append(Setting(TWO, 1, partial(_recorded, code, _project_pair, NoCapture)))
    if BREAKABLE in code.lifted:
        settings.append(Setting(IN_CAPTURE, 1, partial(_recorded, code, _project_pair, OpenCapture)))
    return DualStream(tuple(settings), _real(code, _project_pair))


def _many(code: HelperCode) -> DualStream:
    """Call `execute_in_parallel` with any number of functions, each but the first on its own stream."""
    names = (ONE, TWO, THREE)
    settings = [
        Setting(name, others, partial(_recorded, code, _project_many, NoCapture))
        for others, name in enumerate(names)
    ]
    if _DEFAULT_FIRST in code.parameters:
        first = partial(_project_many, default_first=True)
        settings.append(Setting(DEFAULT_FIRST, 2, partial(_recorded, code, first, NoCapture)))
    return DualStream(tuple(settings), _real(code, _project_many))


_DEFAULT_FIRST = "default_first"  # not yet in 0.20.2
_MAKERS: Mapping[str, Callable[[HelperCode], DualStream]] = {
    "maybe_execute_in_parallel": _pair,
    "execute_in_parallel": _many,
}

Helper = Callable[..., tuple[Any, Any]]


def _recorded(
    code: HelperCode, project: Callable[..., tuple[Tensor, ...]], capture: type, device: Device
) -> Project:
    return partial(project, _helper(code, RecordingTorch(device), capture))


def _real(code: HelperCode, project: Callable[..., tuple[Tensor, ...]]) -> Project:
    return partial(project, _helper(code, torch, NoCapture))


def _helper(code: HelperCode, torch_: object, capture: type) -> Helper:
    """Return the function; raise `UsageError` when it is not called as it was."""
    stand_ins = {name: value for name, value in {BREAKABLE: capture}.items() if name in code.lifted}
    if missing := [name for name in _CALLED_WITH[code.name] if name not in code.parameters]:
        raise UsageError(f"{code.filename}:{code.line}: {code.name} has no parameter '{missing[0]}'")
    helper: Helper = code.run_with(torch=torch_, **stand_ins)
    return helper


_CALLED_WITH = {
    "maybe_execute_in_parallel": ("fn0", "fn1", "event0", "event1", "aux_stream"),
    "execute_in_parallel": (
        "default_fn", "aux_fns", "start_event", "done_events", "aux_streams", "enable",
    ),
}  # fmt: skip


def _project_pair(helper: Helper, x: Tensor, weights: tuple[Tensor, ...], lanes: Lanes) -> tuple[Tensor, ...]:
    one, other = (partial(linear, x, weight) for weight in weights)
    events = {"event0": lanes.start, "event1": lanes.done[0] if lanes.done else lanes.start}
    return helper(fn0=one, fn1=other, aux_stream=lanes.aux[0] if lanes.aux else None, **events)


def _project_many(
    helper: Helper, x: Tensor, weights: tuple[Tensor, ...], lanes: Lanes, **options: object
) -> tuple[Tensor, ...]:
    own, *others = (partial(linear, x, weight) for weight in weights)
    first, rest = helper(
        own, others, lanes.start, list(lanes.done), list(lanes.aux) or None, enable=True, **options
    )
    return (first, *rest)
