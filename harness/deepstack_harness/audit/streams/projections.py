"""The ways to project that are judged: `dual`, `dual` with one fault each, and the helpers of a source.

Ways of ours have a name and the settings that each is rehearsed in.  Helpers of a vLLM source run on
recording streams, and with torch's own.
"""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear
from typing_extensions import TypeIs

from deepstack_harness.audit.cut_systems import HelperCode, cut_helpers
from deepstack_harness.audit.streams.device import (
    Device,
    Event,
    Lanes,
    Project,
    dual,
    dual_of_copy,
    sequential,
)
from deepstack_harness.audit.streams.recording import Setting
from deepstack_harness.catalogue.registry import DUAL_STREAM
from deepstack_harness.errors import UsageError
from deepstack_harness.sources.source import Source

Weights = tuple[Tensor, ...]


def _beside(faulty: Project) -> Project:
    """Wrap a faulty way of projecting: without a second stream nothing can be out of order."""

    @functools.wraps(faulty)
    def project(x: Tensor, weights: Weights, lanes: Lanes) -> Weights:
        return (faulty if lanes.aux else sequential)(x, weights, lanes)

    return project


@_beside
def start_forgotten(x: Tensor, weights: Weights, lanes: Lanes) -> tuple[Tensor, ...]:
    """Project without letting the other stream wait for x (n, hidden)."""
    first = linear(x, weights[0])
    with lanes.on(lanes.aux[0]):
        second = linear(x, weights[1])
        lanes.done[0].record()
    lanes.done[0].wait()
    return first, second


@_beside
def done_forgotten(x: Tensor, weights: Weights, lanes: Lanes) -> tuple[Tensor, ...]:
    """Project x (n, hidden) without waiting for the other stream's result."""
    lanes.start.record()
    first = linear(x, weights[0])
    with lanes.on(lanes.aux[0]):
        lanes.start.wait()
        second = linear(x, weights[1])
        lanes.done[0].record()
    return first, second


@_beside
def done_recorded_outside(x: Tensor, weights: Weights, lanes: Lanes) -> tuple[Tensor, ...]:
    """Project x (n, hidden), but record the second event on the current stream.

    A published listing of vLLM 36795 does so.
    """
    lanes.start.record()
    first = linear(x, weights[0])
    with lanes.on(lanes.aux[0]):
        lanes.start.wait()
        second = linear(x, weights[1])
    lanes.done[0].record()
    lanes.done[0].wait()
    return first, second


@_beside
def start_waited_too_early(x: Tensor, weights: Weights, lanes: Lanes) -> tuple[Tensor, ...]:
    """Project x (n, hidden), but wait before the event is recorded: for nothing, or for the layer before."""
    with lanes.on(lanes.aux[0]):
        lanes.start.wait()
        second = linear(x, weights[1])
        lanes.done[0].record()
    lanes.start.record()
    first = linear(x, weights[0])
    lanes.done[0].wait()
    return first, second


@_beside
def done_waited_too_early(x: Tensor, weights: Weights, lanes: Lanes) -> tuple[Tensor, ...]:
    """Project x (n, hidden), but wait on the current stream before the other one recorded that it is done."""
    lanes.start.record()
    first = linear(x, weights[0])
    lanes.done[0].wait()
    with lanes.on(lanes.aux[0]):
        lanes.start.wait()
        second = linear(x, weights[1])
        lanes.done[0].record()
    return first, second


@_beside
def memory_reused_too_early(x: Tensor, weights: Weights, lanes: Lanes) -> tuple[Tensor, ...]:
    """Project a copy of x (n, hidden) on the other stream, and free it on the host while it is still read.

    The allocator gives memory back to the stream it came from: the current one, whose
    next result overwrites it.  (`Tensor.record_stream` is what says that another stream uses it.)
    """
    copy = x.clone()
    lanes.start.record()
    with lanes.on(lanes.aux[0]):
        lanes.start.wait()
        second = linear(copy, weights[1])
        lanes.done[0].record()
    del copy
    first = linear(x, weights[0])
    lanes.done[0].wait()
    return first, second


ONE, TWO, THREE = "one stream", "two streams", "three streams"


@dataclass(frozen=True)
class DualStream:
    """A way to project.

    `settings` are rehearsed on recording streams, `project` runs with torch's own; `named`
    says that its op takes the layer's name.  `subgraphs`: whether it stands for its op,
    whose distinct subgraphs are to be counted.
    """

    settings: tuple[Setting, ...]
    project: Project
    named: bool = False
    subgraphs: bool = False


def _ours(project: Project, *others: int, named: bool = False, subgraphs: bool = False) -> DualStream:
    names = (ONE, TWO, THREE)
    settings = tuple(Setting(names[count], count, _always(project)) for count in others)
    return DualStream(settings, project, named, subgraphs)


def _always(project: Project) -> Callable[[Device], Project]:
    return lambda _: project


SEQUENTIAL = _ours(sequential, 0, 1)
DUAL = _ours(dual, 0, 1, 2)
DUAL_OF_COPY = _ours(dual_of_copy, 0, 1)
START_FORGOTTEN = _ours(start_forgotten, 0, 1)
DONE_FORGOTTEN = _ours(done_forgotten, 0, 1)
DONE_RECORDED_OUTSIDE = _ours(done_recorded_outside, 0, 1)
START_WAITED_TOO_EARLY = _ours(start_waited_too_early, 0, 1)
DONE_WAITED_TOO_EARLY = _ours(done_waited_too_early, 0, 1)
MEMORY_REUSED_TOO_EARLY = _ours(memory_reused_too_early, 0, 1)
FIXED_OP = _ours(dual, 1, subgraphs=True)
NAMED_OP = _ours(dual, 1, named=True, subgraphs=True)


def dual_stream_named(name: str) -> DualStream:
    """Return a variant of the dual-stream projection; raises `UsageError` for an unknown name."""
    return DUAL_STREAM.load(name, _is_dual_stream, "a DualStream")


def _is_dual_stream(named: object) -> TypeIs[DualStream]:
    return isinstance(named, DualStream)


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
    helpers = cut_helpers(source, {BREAKABLE})
    return [(code, _MAKERS[name](code)) for name, code in helpers.items()]


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
    first, second = (partial(linear, x, weight) for weight in weights)
    events = {"event0": lanes.start, "event1": lanes.done[0] if lanes.done else lanes.start}
    return helper(fn0=first, fn1=second, aux_stream=lanes.aux[0] if lanes.aux else None, **events)


def _project_many(
    helper: Helper, x: Tensor, weights: tuple[Tensor, ...], lanes: Lanes, **options: object
) -> tuple[Tensor, ...]:
    own, *others = (partial(linear, x, weight) for weight in weights)
    first, rest = helper(
        own, others, lanes.start, list(lanes.done), list(lanes.aux) or None, enable=True, **options
    )
    return (first, *rest)
