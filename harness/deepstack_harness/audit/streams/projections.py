"""The ways to project that are judged: `dual`, `dual` with one fault each, and the helpers of a source.

Ways of ours have a name and the settings that each is rehearsed in.  Helpers of a vLLM source run on
recording streams, and with torch's own.
"""

import ast
import inspect
from collections.abc import Callable
from contextlib import nullcontext
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


def _calls(*calls: str) -> Project:
    """Return a way to project x (n, hidden) by two weights that makes these calls of the host in their order.

    `aux:` makes the other stream current for a call. Without another stream nothing can be out of order.
    """

    def project(x: Tensor, weights: Weights, lanes: Lanes) -> Weights:
        if not lanes.aux:
            return sequential(x, weights, lanes)
        events, results = {"start": lanes.start, "done": lanes.done[0]}, dict[str, Tensor]()
        for call in calls:
            verb, name = call.removeprefix("aux: ").split()
            with lanes.stream(lanes.aux[0]) if call.startswith("aux: ") else nullcontext():
                if verb == "project":
                    results[name] = linear(x, weights[name == "second"])
                else:
                    getattr(events[name], verb)()
        return results["first"], results["second"]

    return project


start_forgotten = _calls(
    "project first", "aux: project second", "aux: record done", "wait done",
)  # fmt: skip
"""The other stream does not wait for x."""
done_forgotten = _calls(
    "record start", "project first", "aux: wait start", "aux: project second", "aux: record done",
)  # fmt: skip
"""The current stream does not wait for the other one's result."""
done_recorded_outside = _calls(
    "record start", "project first", "aux: wait start", "aux: project second", "record done", "wait done",
)  # fmt: skip
"""The second event is recorded on the current stream; a published listing of vLLM 36795 does so."""
start_waited_too_early = _calls(
    "aux: wait start", "aux: project second", "aux: record done", "record start", "project first",
    "wait done",
)  # fmt: skip
"""The wait comes before the event is recorded: it is for nothing, or for the layer before."""
done_waited_too_early = _calls(
    "record start", "project first", "wait done", "aux: wait start", "aux: project second",
    "aux: record done",
)  # fmt: skip
"""The current stream waits before the other one recorded that it is done."""


def memory_reused_too_early(x: Tensor, weights: Weights, lanes: Lanes) -> tuple[Tensor, ...]:
    """Project a copy of x (n, hidden) on the other stream, and free it on the host while it is still read.

    The allocator gives memory back to the stream it came from: the current one, whose
    next result overwrites it. (`Tensor.record_stream` would mark it as used by another stream.)
    """
    if not lanes.aux:
        return sequential(x, weights, lanes)
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


class _Instead:
    """A module with other attributes than its own, where some are given."""

    def __init__(self, module: ModuleType, **others: object) -> None:
        self.__dict__.update(others)
        self._module = module

    def __getattr__(self, name: str) -> object:
        return getattr(self._module, name)


def recording_torch(device: Device) -> object:
    """Return what a helper knows as `torch`: torch, with streams and events of a recording device."""
    cuda = _Instead(
        torch.cuda,
        stream=device.use_stream,
        current_stream=lambda *_: device.current,
        Event=lambda **_: Event(device),
    )
    return _Instead(torch, cuda=cuda)


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
    return [(helper, _ways_of(helper)) for helper in helpers]


def _ways_of(helper: Helper) -> DualStream:
    """Call a helper in its settings: `execute_in_parallel` with a function for each stream, else with two."""
    if helper.name == "execute_in_parallel":
        project: Callable[..., Weights] = _project_many
        settings = [(name, others, project, NO_CAPTURE) for others, name in enumerate((ONE, TWO, THREE))]
        if "default_first" in helper.parameters:  # not yet in 0.20.2
            settings.append((DEFAULT_FIRST, 2, partial(project, default_first=True), NO_CAPTURE))
    else:
        project = _project_pair
        settings = [(ONE, 0, project, NO_CAPTURE), (TWO, 1, project, NO_CAPTURE)]
        if BREAKABLE in helper.code.co_names:
            settings.append((IN_CAPTURE, 1, project, OPEN_CAPTURE))
    made = (
        Setting(name, others, partial(_recorded, helper, called, capture))
        for name, others, called, capture in settings
    )
    return DualStream(tuple(made), partial(project, helper.over(torch, NO_CAPTURE)))


def _recorded(
    helper: Helper, project: Callable[..., tuple[Tensor, ...]], capture: object, device: Device
) -> Project:
    return partial(project, helper.over(recording_torch(device), capture))


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
