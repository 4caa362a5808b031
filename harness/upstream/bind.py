"""Bind the buffer of a vLLM source to the `Buffer` interface."""

import inspect
import linecache
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn

from harness.errors import StepUnavailable, UsageError
from harness.upstream.cut import HOST, SINCE, STORAGE, Cut, cut
from harness.upstream.source import NoSuchMember, Source
from harness.upstream.stand_ins import (
    STAND_INS,
    Host,
    IntermediateTensors,
    Settings,
    StageMissingLayer,
    Surroundings,
    VisionTower,
    vllm_config,
)


@dataclass(frozen=True)
class Model:
    """Where a model class is defined; `nested` is where its configuration lies in the Hugging Face one."""

    member: str
    class_name: str
    nested: str | None = None


MODELS: Mapping[str, Model] = {
    "qwen3_vl": Model("vllm/model_executor/models/qwen3_vl.py", "Qwen3VLForConditionalGeneration"),
    "qwen3_omni_moe_thinker": Model(
        "vllm/model_executor/models/qwen3_omni_moe_thinker.py",
        "Qwen3OmniMoeThinkerForConditionalGeneration",
        "thinker_config",
    ),
}


@dataclass(frozen=True)
class BoundClass:
    """A model class of one source, as a `BufferFactory`.

    Use `dataclasses.replace(bound, surroundings=...)` for a model that is built
    in another way.
    """

    source: Source
    model: Model
    cut: Cut
    host: type[Host]
    surroundings: Surroundings = field(default_factory=Surroundings)

    @property
    def label(self) -> str:
        """The source's: `vllm 0.22.1`."""
        return self.source.label

    @property
    def model_class(self) -> str:
        """The class's own name."""
        return self.cut.class_name

    @property
    def filename(self) -> str:
        """The file it was cut from, as tracebacks show it."""
        return self.cut.filename

    @property
    def methods(self) -> Mapping[str, int]:
        """The methods that were cut, and their lines."""
        return self.cut.lines

    def __call__(
        self, capacity: int, hidden: int, levels: int, *, dtype: torch.dtype, device: torch.device
    ) -> "UpstreamBuffer":
        """Run the class's own allocation.

        dtype and device are the ambient ones, since the class names none.  Raises
        `UsageError` that names file and line when its `__init__` cannot be run.
        """
        config = vllm_config(capacity, hidden, levels, nested=self.model.nested, dtype=dtype, device=device)
        instance = self.host.__new__(self.host)
        try:
            with _ambient(dtype, device):
                instance.surround(self.surroundings.tower, self._visual())
                instance.__init__(**self._arguments(config))  # type: ignore[misc]
        except Exception as error:
            where = _place_of(error, self.filename)
            raise UsageError(f"{where}: {self.model_class}.__init__ cannot be run without vLLM: {error}") from error
        return UpstreamBuffer(instance, self.cut, self.surroundings.vision)

    def _visual(self) -> nn.Module | None:
        """The vision tower, or what this release has in its place."""
        if self.surroundings.vision:
            return VisionTower()
        return StageMissingLayer() if "StageMissingLayer" in self.cut.replaced.values() else None

    def _arguments(self, config: Settings) -> dict[str, object]:
        known = {"vllm_config": config, "prefix": ""}
        wanted = inspect.signature(self.host).parameters
        return {name: value for name, value in known.items() if name in wanted}


class UpstreamBuffer:
    """An instance of a cut-out class behind the `Buffer` interface.

    It has no `generation`: no release tells anybody that storage moves.
    """

    def __init__(self, host: Host, cut: Cut, vision: bool) -> None:
        """`host` has been through the class's own `__init__`."""
        self._host: Any = host
        self._cut = cut
        self.vision = vision

    @property
    def capacity(self) -> int:
        """Rows of level 0 now; 0 while there is no storage."""
        levels = getattr(self._host, STORAGE, None)
        return 0 if levels is None or len(levels) == 0 else int(levels[0].size(0))

    def get(self, tokens: int, /) -> tuple[Tensor, ...] | None:
        """See `Buffer.get`; raises `UsageError` when the levels cannot be told from the answer."""
        answer = self._call("get", tokens)
        return None if answer is None else self._in_level_order(answer)

    def set(self, payload: Tensor, /) -> None:
        """See `Buffer.set`."""
        self._call("set", payload)

    def clear(self, tokens: int, /) -> None:
        """See `Buffer.clear`."""
        self._call("clear", tokens)

    def resize(self, tokens: int, /) -> None:
        """See `Buffer.resize`."""
        if "resize" not in self._cut.verbs:
            raise StepUnavailable(f"{self._cut.class_name} has no method that resizes the buffer")
        self._call("resize", tokens)

    def _call(self, verb: str, argument: object) -> Any:
        return getattr(self._host, self._cut.verbs[verb])(argument)

    def _in_level_order(self, answer: Any) -> tuple[Tensor, ...]:
        """By name, as the decoder looks them up: `deepstack_input_embeds_0`, `_1`, ..."""
        tensors = getattr(answer, "tensors", answer)
        found = list(tensors) if isinstance(tensors, Mapping) else type(answer).__name__
        wanted = [f"{STORAGE}_{level}" for level in range(len(found))]
        if not isinstance(tensors, Mapping) or set(wanted) != set(found):
            method = self._cut.verbs["get"]
            raise UsageError(
                f"{self._cut.filename}:{self._cut.lines[method]}: {method} answers with {found}, "
                f"not with one tensor each for {STORAGE}_0, {STORAGE}_1, ..: which level is which?"
            )
        return tuple(tensors[name] for name in wanted)


def bind(source: Source, model: str = "qwen3_vl") -> BoundClass:
    """Cut the buffer of `model` (a key of `MODELS`) out of `source`.

    Raises `UsageError` that says what is missing when this source has no such
    buffer, or one that cannot be run without vLLM; `MachineError` when the source
    cannot be fetched.
    """
    if model not in MODELS:
        raise UsageError(f"unknown model '{model}'; known are {', '.join(MODELS)}")
    chosen = MODELS[model]
    try:
        file = source.read(chosen.member)
    except NoSuchMember as error:
        raise UsageError(f"{error}: {SINCE}") from error
    linecache.cache[file.filename] = (len(file.text), None, file.text.splitlines(True), file.filename)
    done = cut(file, chosen.class_name, host=Host, given=Host.GIVEN, stand_ins=STAND_INS)
    bound = BoundClass(source, chosen, done, _define(done))
    _rehearse(bound)
    return bound


def where_returned(buffer: UpstreamBuffer, tokens: int) -> str:
    """Run get(`tokens`) once more and tell at which `return` it answered: `FILE:LINE`.

    For a diagnosis only: a get that resizes does so here too, and what a get
    raises comes through.
    """
    places: list[str] = []
    method, filename = buffer._cut.verbs["get"], buffer._cut.filename

    def watch_line(frame: FrameType, event: str, _: object) -> Any:
        if event == "return":
            places.append(f"{filename}:{frame.f_lineno}")
        return watch_line

    def watch_call(frame: FrameType, event: str, _: object) -> Any:
        code = frame.f_code
        return watch_line if (code.co_filename, code.co_name) == (filename, method) else None

    before = sys.gettrace()
    sys.settrace(watch_call)
    try:
        buffer._call("get", tokens)
    finally:
        sys.settrace(before)
    return places[-1]


def _define(done: Cut) -> type[Host]:
    """Execute the cut module: the class, over a fresh host."""
    stand_ins = {name: STAND_INS[real] for name, real in done.replaced.items()}
    names: dict[str, Any] = {"__name__": f"{__name__}.{done.class_name}", HOST: Host, **stand_ins}
    try:
        exec(done.code, names)
    except Exception as error:
        where = _place_of(error, done.filename)
        raise UsageError(f"{where}: {done.class_name} cannot be defined without vLLM: {error}") from error
    defined: type[Host] = names[done.class_name]
    return defined


def _rehearse(bound: BoundClass) -> None:
    """Refuse now what would otherwise look like a fault of the buffer in the middle of a run."""
    buffer = bound(4, 5, 2, dtype=torch.float32, device=torch.device("cpu"))
    where = f"{bound.filename}:{min(bound.methods.values())}"
    try:
        buffer.set(torch.ones(2, 3, 5))
        if not _has_rows(buffer, 3):
            raise UsageError(f"{where}: {bound.model_class} keeps its rows elsewhere than in self.{STORAGE}")
        buffer.get(3)
        buffer.clear(3)
    except UsageError:
        raise
    except Exception as error:  # what is the buffer's own fault is for the run to report
        if _is_ours(error):
            place = _place_of(error, bound.filename)
            raise UsageError(f"{place}: {bound.model_class} cannot be run without vLLM: {error}") from error


def _has_rows(buffer: UpstreamBuffer, rows: int) -> bool:
    try:
        return buffer.capacity >= rows
    except (AttributeError, LookupError, TypeError):
        return False


def _is_ours(error: Exception) -> bool:
    """Whether cut code missed something that only the whole vLLM would have."""
    stand_ins = (Host, Settings, VisionTower, StageMissingLayer, IntermediateTensors)
    return type(error) is NameError or (isinstance(error, AttributeError) and isinstance(error.obj, stand_ins))


def _place_of(error: Exception, filename: str) -> str:
    """`FILE:LINE` of the innermost frame in `filename`."""
    frames = traceback.walk_tb(error.__traceback__)
    lines = [line for frame, line in frames if frame.f_code.co_filename == filename]
    return f"{filename}:{lines[-1]}" if lines else filename


@contextmanager
def _ambient(dtype: torch.dtype, device: torch.device) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with device:
            yield
    finally:
        torch.set_default_dtype(before)
