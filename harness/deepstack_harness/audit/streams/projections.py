"""The ways to project that are judged: `dual`, `dual` with one fault each, and the helpers of a source.

Ways of ours have a name and the settings that each is rehearsed in.  Helpers of a vLLM source run on
recording streams, and with torch's own.
"""

import ast
import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import CodeType, FunctionType, ModuleType, SimpleNamespace
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.functional import linear
from typing_extensions import TypeIs

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
from deepstack_harness.audit.system_files import HELPERS, HELPERS_MEMBER, HELPERS_SINCE
from deepstack_harness.catalogue.registry import DUAL_STREAM
from deepstack_harness.engines.load import LoadedSource, loaded_of
from deepstack_harness.engines.syntax import parse
from deepstack_harness.errors import UsageError
from deepstack_harness.sources.source import Source, read_since

Weights = tuple[Tensor, ...]


def _needs_second_stream(faulty: Project) -> Project:
    """Wrap a faulty way of projecting: without a second stream nothing can be out of order."""

    @functools.wraps(faulty)
    def project(x: Tensor, weights: Weights, lanes: Lanes) -> Weights:
        return (faulty if lanes.aux else sequential)(x, weights, lanes)

    return project


@_needs_second_stream
def start_forgotten(x: Tensor, weights: Weights, lanes: Lanes) -> tuple[Tensor, ...]:
    """Project without letting the other stream wait for x (n, hidden)."""
    first = linear(x, weights[0])
    with lanes.stream(lanes.aux[0]):
        second = linear(x, weights[1])
        lanes.done[0].record()
    lanes.done[0].wait()
    return first, second


@_needs_second_stream
def done_forgotten(x: Tensor, weights: Weights, lanes: Lanes) -> tuple[Tensor, ...]:
    """Project x (n, hidden) without waiting for the other stream's result."""
    lanes.start.record()
    first = linear(x, weights[0])
    with lanes.stream(lanes.aux[0]):
        lanes.start.wait()
        second = linear(x, weights[1])
        lanes.done[0].record()
    return first, second


@_needs_second_stream
def done_recorded_outside(x: Tensor, weights: Weights, lanes: Lanes) -> tuple[Tensor, ...]:
    """Project x (n, hidden), but record the second event on the current stream.

    A published listing of vLLM 36795 does so.
    """
    lanes.start.record()
    first = linear(x, weights[0])
    with lanes.stream(lanes.aux[0]):
        lanes.start.wait()
        second = linear(x, weights[1])
    lanes.done[0].record()
    lanes.done[0].wait()
    return first, second


@_needs_second_stream
def start_waited_too_early(x: Tensor, weights: Weights, lanes: Lanes) -> tuple[Tensor, ...]:
    """Project x (n, hidden), but wait before the event is recorded: for nothing, or for the layer before."""
    with lanes.stream(lanes.aux[0]):
        lanes.start.wait()
        second = linear(x, weights[1])
        lanes.done[0].record()
    lanes.start.record()
    first = linear(x, weights[0])
    lanes.done[0].wait()
    return first, second


@_needs_second_stream
def done_waited_too_early(x: Tensor, weights: Weights, lanes: Lanes) -> tuple[Tensor, ...]:
    """Project x (n, hidden), but wait on the current stream before the other one recorded that it is done."""
    lanes.start.record()
    first = linear(x, weights[0])
    lanes.done[0].wait()
    with lanes.stream(lanes.aux[0]):
        lanes.start.wait()
        second = linear(x, weights[1])
        lanes.done[0].record()
    return first, second


@_needs_second_stream
def memory_reused_too_early(x: Tensor, weights: Weights, lanes: Lanes) -> tuple[Tensor, ...]:
    """Project a copy of x (n, hidden) on the other stream, and free it on the host while it is still read.

    The allocator gives memory back to the stream it came from: the current one, whose
    next result overwrites it. (`Tensor.record_stream` would mark it as used by another stream.)
    """
    copy = x.clone()
    lanes.start.record()
    with lanes.stream(lanes.aux[0]):
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

    `settings` are run on recording streams, `project` on torch's own. With `subgraphs` it is called by an op,
    and the distinct subgraphs of layers with this op are counted; the op of a `named` one takes the layer's
    name.
    """

    settings: tuple[Setting, ...]
    project: Project
    named: bool = False
    subgraphs: bool = False


def _ours(project: Project, *others: int, named: bool = False, subgraphs: bool = False) -> DualStream:
    names = (ONE, TWO, THREE)
    settings = tuple(Setting(names[count], count, lambda _: project) for count in others)
    return DualStream(settings, project, named, subgraphs)


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
"""From 0.28.0 on the helper checks with it whether a graph is being captured (vllm/compilation)."""

IN_CAPTURE = "two streams, while a breakable graph is captured"
DEFAULT_FIRST = "three streams, main one first"


NO_CAPTURE = SimpleNamespace(is_active=lambda: False)
"""Takes the place of `BreakableCUDAGraphCapture` while nothing is captured."""
OPEN_CAPTURE = SimpleNamespace(is_active=lambda: True)
"""Takes the place of `BreakableCUDAGraphCapture` while a graph is captured."""


class RecordingTorch:
    """Module that a helper knows as `torch`: torch, with streams and events of a recording device."""

    def __init__(self, device: Device) -> None:
        self.cuda = _RecordingCuda(device)

    def __getattr__(self, name: str) -> object:
        """Return torch's own attribute."""
        return getattr(torch, name)


class _RecordingCuda:
    def __init__(self, device: Device) -> None:
        self.stream = device.use_stream
        self.current_stream = lambda *_: device.current
        self.Event = lambda **_: Event(device)

    def __getattr__(self, name: str) -> object:
        return getattr(torch.cuda, name)


def dual_streams_of(source: Source) -> dict[str, DualStream]:
    """Return the functions of `source` that project on several streams, by name; raise as `helpers_of`."""
    return {helper.name: way for helper, way in helpers_of(source)}


Projector = Callable[..., tuple[Any, Any]]


@dataclass(frozen=True)
class Helper:
    """A helper of an imported source, by its name in `module`; `code` is that of its own function."""

    loaded: LoadedSource
    module: ModuleType
    name: str
    code: CodeType

    @property
    def where(self) -> str:
        """FILE:LINE where it begins."""
        return f"{self.code.co_filename}:{self.code.co_firstlineno}"

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of its parameters."""
        return self.code.co_varnames[: self.code.co_argcount + self.code.co_kwonlyargcount]

    def over(self, torch_: object, capture: object) -> Projector:
        """Return the function as it runs where these are its module's `torch` and vLLM's `BREAKABLE`.

        Raises `UsageError` when it is not called as it was; so does a call that meets what is not there.
        """
        if missing := [name for name in _CALLED_WITH[self.name] if name not in self.parameters]:
            raise UsageError(f"{self.where}: {self.name} has no parameter '{missing[0]}'")
        names = vars(self.module)
        function: Projector = names[self.name]

        def call(*args: object, **named: object) -> tuple[Any, Any]:
            self.loaded.supply({BREAKABLE: capture})
            names["torch"] = torch_
            try:
                with self.loaded.without_stubs():
                    return function(*args, **named)
            finally:
                names["torch"] = torch

        return call


def helpers_of(source: Source) -> list[tuple[Helper, DualStream]]:
    """Import the file of the helpers; return those that `source` has, each with its ways to be called.

    Raises `UsageError` when there is none, or one that cannot be made; `MachineError` when the file cannot be
    fetched.
    """
    file = read_since(source, HELPERS_MEMBER, HELPERS_SINCE)
    defined = {node.name for node in parse(file).body if isinstance(node, ast.FunctionDef)}
    names = [name for name in HELPERS if name in defined]
    if not names:
        raise UsageError(
            f"{file.filename} has none of {', '.join(HELPERS)}; vLLM has them since {HELPERS_SINCE}"
        )
    loaded = loaded_of(source)
    module = loaded.module(HELPERS_MEMBER)
    functions = {
        name: inspect.unwrap(cast(FunctionType, loaded.named(HELPERS_MEMBER, name))) for name in names
    }
    loaded.check_instrument()
    helpers = [Helper(loaded, module, name, function.__code__) for name, function in functions.items()]
    return [(helper, _MAKERS[helper.name](helper)) for helper in helpers]


def _pair(helper: Helper) -> DualStream:
    """Call `maybe_execute_in_parallel` with two functions, and perhaps a stream for the second."""
    settings = [
        Setting(ONE, 0, partial(_recorded, helper, _project_pair, NO_CAPTURE)),
        Setting(TWO, 1, partial(_recorded, helper, _project_pair, NO_CAPTURE)),
    ]
    if BREAKABLE in helper.code.co_names:
        settings.append(Setting(IN_CAPTURE, 1, partial(_recorded, helper, _project_pair, OPEN_CAPTURE)))
    return DualStream(tuple(settings), partial(_project_pair, helper.over(torch, NO_CAPTURE)))


def _many(helper: Helper) -> DualStream:
    """Call `execute_in_parallel` with any number of functions, each but the first on its own stream."""
    names = (ONE, TWO, THREE)
    settings = [
        Setting(name, others, partial(_recorded, helper, _project_many, NO_CAPTURE))
        for others, name in enumerate(names)
    ]
    if "default_first" in helper.parameters:  # not yet in 0.20.2
        first = partial(_project_many, default_first=True)
        settings.append(Setting(DEFAULT_FIRST, 2, partial(_recorded, helper, first, NO_CAPTURE)))
    return DualStream(tuple(settings), partial(_project_many, helper.over(torch, NO_CAPTURE)))


_MAKERS: Mapping[str, Callable[[Helper], DualStream]] = {
    "maybe_execute_in_parallel": _pair,
    "execute_in_parallel": _many,
}


def _recorded(
    helper: Helper, project: Callable[..., tuple[Tensor, ...]], capture: object, device: Device
) -> Project:
    return partial(project, helper.over(RecordingTorch(device), capture))


_CALLED_WITH = {
    "maybe_execute_in_parallel": ("fn0", "fn1", "event0", "event1", "aux_stream"),
    "execute_in_parallel": (
        "default_fn", "aux_fns", "start_event", "done_events", "aux_streams", "enable",
    ),
}  # fmt: skip


def _project_pair(
    helper: Projector, x: Tensor, weights: tuple[Tensor, ...], lanes: Lanes
) -> tuple[Tensor, ...]:
    first, second = (partial(linear, x, weight) for weight in weights)
    events = {"event0": lanes.start, "event1": lanes.done[0] if lanes.done else lanes.start}
    return helper(fn0=first, fn1=second, aux_stream=lanes.aux[0] if lanes.aux else None, **events)


def _project_many(
    helper: Projector, x: Tensor, weights: tuple[Tensor, ...], lanes: Lanes, **options: object
) -> tuple[Tensor, ...]:
    own, *others = (partial(linear, x, weight) for weight in weights)
    first, rest = helper(
        own, others, lanes.start, list(lanes.done), list(lanes.aux) or None, enable=True, **options
    )
    return (first, *rest)
