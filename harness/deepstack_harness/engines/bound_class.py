"""Bind a model class of a source as a `BufferFactory`.

A class is called in one of two ways:

- `MethodsClass` calls the methods that get, set, clear and resize the payload.
- `ForwardClass` calls the class in the engine's own order.  The class sets its buffer inside its
  `embed_input_ids`, and reads and clears it inside its `forward`. Both run unchanged, with the functions
  that they import, over a language model that only records its arguments. This shows what an engine really
  reaches, and covers classes without get, set and clear.

In both, a class is called once before it is judged (`rehearse`): code that needs the rest of its package is
refused there, or it would be judged as a faulty buffer.
"""

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from types import FrameType
from typing import TYPE_CHECKING, Generic, TypeVar

import torch
from torch import Tensor, nn
from typing_extensions import override

from deepstack_harness.contract.case import LEVELS_ALONE, BufferRef
from deepstack_harness.contract.protocols import Buffer
from deepstack_harness.engines.class_facts import STORAGE
from deepstack_harness.engines.model_class import KnownModel, reason_at
from deepstack_harness.engines.stand_ins import (
    NAMED_LEVELS,
    PAYLOAD,
    TOKEN_IDS,
    DeepstackTower,
    FirstRank,
    ForwardBuffer,
    ForwardHost,
    Host,
    IntermediateTensors,
    Layout,
    LenientSettings,
    Part,
    PayloadConvention,
    RecordingModel,
    Role,
    Settings,
    StageMissingLayer,
    Surroundings,
    VisionTower,
    levels_in,
    stored_rows,
    vllm_config,
)
from deepstack_harness.errors import Reason, SourceError, StepUnavailable, UsageError, passes_through
from deepstack_harness.sources.source import buffer_of

if TYPE_CHECKING:
    from _typeshed import TraceFunction


H = TypeVar("H", bound=Host)

_STAND_INS = (Host, Settings, VisionTower, StageMissingLayer, IntermediateTensors, RecordingModel, FirstRank)
_NAMES = frozenset(kind.__qualname__ for kind in (*_STAND_INS, ForwardHost))
"""Classes in the message "Kind.method() got an unexpected keyword argument", of ours that take too few."""


@dataclass(frozen=True)
class BoundClass(Generic[H]):
    """A model class of one source; `host` is the class that was defined from `known`."""

    known: KnownModel
    host: type[H]

    @property
    def ref(self) -> BufferRef:
        """The reference by which cases and rows name the class."""
        return buffer_of(self.known.source, self.model_class)

    @property
    def model_class(self) -> str:
        """The class's own name."""
        return self.known.model.class_name

    @property
    def filename(self) -> str:
        """The file of the class, as tracebacks show it."""
        return self.known.filename

    def refusal(self, error: Exception, method: str = "") -> UsageError:
        """Return an error about a part that is missing here: with file and line, the class, and `error`."""
        text = f"{self.model_class}{method} cannot be run without the rest of its package: {error}"
        is_unset = isinstance(error, AttributeError) and isinstance(error.obj, Settings)
        return SourceError(replace(reason_at(error, self.filename, text), remains=is_unset))

    def refused(self, error: Exception) -> UsageError:
        """Return a `UsageError` unchanged, and the refusal of any other error."""
        return error if isinstance(error, UsageError) else self.refusal(error)

    def _instance(
        self, config: Settings, dtype: torch.dtype, device: torch.device, prepare: Callable[[H], None]
    ) -> H:
        """Make an object: `prepare` gives it what is around the buffer, then its `__init__` runs.

        dtype and device are the ambient ones, since the class names none.  Raises `UsageError`
        that names file and line when `__init__` cannot be run.
        """
        instance = self.host.__new__(self.host)
        # A class may come without the line that leads here.
        nn.Module.__init__(instance)
        before = torch.get_default_dtype()
        try:
            torch.set_default_dtype(dtype)
            with device:
                prepare(instance)
                type(instance).__init__(instance, **self._arguments(config))
        except Exception as error:
            raise self.refusal(error, ".__init__") from error
        finally:
            torch.set_default_dtype(before)
        if not isinstance(instance, self.host):
            raise self.refusal(TypeError("its __init__ makes it an object of another class"), ".__init__")
        return instance

    def _arguments(self, config: Settings) -> dict[str, object]:
        """Return those arguments of an engine that the class's `__init__` takes."""
        known: dict[str, object] = {"vllm_config": config, "prefix": ""}
        wanted = inspect.signature(self.host).parameters
        return {name: value for name, value in known.items() if name in wanted}


def misses_package(error: Exception) -> bool:
    """Return whether code missed something that only the whole package would have."""
    return (
        isinstance(error, UsageError)
        or type(error) is NameError
        or (isinstance(error, AttributeError) and isinstance(error.obj, _STAND_INS))
        or (type(error) is TypeError and str(error).partition(".")[0] in _NAMES)
    )


@contextmanager
def rehearsing(
    refusal: Callable[[Exception], UsageError], misses: Callable[[Exception], bool] = misses_package
) -> Iterator[None]:
    """Raise the `refusal` of an error that comes of a missing package, while code is called once.

    Any other error is the code's own fault, and for the run to report: the block ends without it.
    """
    try:
        yield
    except Exception as error:
        if misses(error):
            refused = refusal(error)
            if refused is error:
                raise
            raise refused from error
    except BaseException as error:  # SystemExit of a method is its own fault as well
        if passes_through(error):
            raise


class MethodsBuffer:
    """The buffer of one model object, called by the names in its source.

    It has no `generation`: no release announces that storage moves.
    """

    vision: bool

    def __init__(
        self, host: Host, known: KnownModel, levels: int, *, vision: bool, listed: bool = False
    ) -> None:
        """Take `host`, the object after the class's own `__init__`, with its number of levels.

        With `listed`, get returns a list or tuple of levels; else a level is recognised by its name.
        """
        self._host = host
        self._levels = levels
        self._known = known
        self.vision = vision
        self._listed = listed

    @property
    def capacity(self) -> int:
        """The number of rows of level 0 now; 0 while there is no storage."""
        values = (getattr(self._host, name, None) for name in sorted(self._known.storage or {STORAGE}))
        return stored_rows(values, self._levels, in_objects=True) or 0

    def get(self, tokens: int, /) -> tuple[Tensor, ...] | None:
        """Return the levels that the class's get returns, in their order, each (P, hidden), or None.

        Raises `UsageError` where their order is not known.
        """
        payload = self._call("get", tokens)
        return None if payload is None else self._in_level_order(payload)

    def set(self, payload: Tensor, /) -> None:
        """Pass on a payload (levels, N, hidden)."""
        self._call("set", payload)

    def clear(self, tokens: int, /) -> None:
        """End the rows; nothing happens where the class has no method for it."""
        if "clear" in self._known.verbs:
            self._call("clear", tokens)

    def resize(self, tokens: int, /) -> None:
        """Make room; raises `StepUnavailable` where the class has no method for it."""
        if "resize" not in self._known.verbs:
            raise StepUnavailable(f"{type(self._host).__name__} has no method that resizes the buffer")
        self._call("resize", tokens)

    def _call(self, verb: str, value: object) -> object:
        method: Callable[[object], object] = getattr(self._host, self._known.verbs[verb])
        return method(value)

    def where_returned(self, tokens: int) -> str:
        """Call get once more and return the `FILE:LINE` of the `return` at which it returned.

        For a diagnosis only: a get that resizes does so here too, and what a get raises is raised.
        """
        watched, line = (self._known.filename, self._known.verbs["get"]), 0

        def follow(frame: FrameType, event: str, _argument: object) -> "TraceFunction":
            nonlocal line
            if event == "return":
                line = frame.f_lineno
            return follow

        def enter(frame: FrameType, _event: str, _argument: object) -> "TraceFunction | None":
            return follow if (frame.f_code.co_filename, frame.f_code.co_name) == watched else None

        before = sys.gettrace()
        sys.settrace(enter)
        try:
            self._call("get", tokens)
        finally:
            sys.settrace(before)
        return f"{watched[0]}:{line}"

    def _in_level_order(self, payload: object) -> tuple[Tensor, ...]:
        """Order the levels by name, as the decoder looks them up: `deepstack_input_embeds_0`, `_1`, ..."""
        tensors = getattr(payload, "tensors", payload)
        if self._listed and isinstance(tensors, list | tuple):
            return tuple(tensors)
        returned = f"a {type(payload).__name__}"
        if isinstance(tensors, Mapping):
            names = [f"{STORAGE}_{level}" for level in range(len(tensors))]
            if set(names) == tensors.keys():
                return tuple(tensors[name] for name in names)
            returned = f"the names {', '.join(map(str, tensors))}"
        method = self._known.verbs["get"]
        wanted = f"{STORAGE}_0, {STORAGE}_1, .."
        text = f"{method} returns {returned} instead of {wanted}: cannot tell the levels apart"
        raise SourceError(Reason(text, self._known.filename, self._known.lines[method]))


@dataclass(frozen=True)
class MethodsClass(BoundClass[Host]):
    """A class whose get, set, clear and resize are called.

    `dataclasses.replace(bound, surroundings=...)` builds the model in another way.
    """

    surroundings: Surroundings = field(default_factory=Surroundings)
    listed = False
    """Levels without names, in the order of a list."""
    misses = staticmethod(misses_package)
    """Returns whether code missed something that only the whole package would have."""

    def __call__(
        self, capacity: int, hidden: int, levels: int, *, dtype: torch.dtype, device: torch.device
    ) -> MethodsBuffer:
        """Run the class's own allocation: per level a (capacity, hidden) tensor, in most releases.

        Raises `UsageError` that names file and line when its `__init__` cannot be run.
        """

        def prepare(host: Host) -> None:
            visual: nn.Module | None = VisionTower()
            if not self.surroundings.vision:  # what this release uses for a tower that is skipped
                visual = StageMissingLayer() if "StageMissingLayer" in self.known.replaced else None
            host.surround(self.surroundings.tower, visual)

        config = self._config(capacity, hidden, levels, dtype, device)
        instance = self._instance(config, dtype, device, prepare)
        return MethodsBuffer(
            instance, self.known, levels, vision=self.surroundings.vision, listed=self.listed
        )

    def rehearse(self) -> None:
        """Call each method once; raise `UsageError` where one needs what only the whole package has.

        In the middle of a run that would look like a fault of the buffer.
        """
        buffer = self(4, 5, 2, dtype=torch.float32, device=torch.device("cpu"))
        with rehearsing(self.refused, self.misses):
            buffer.set(torch.ones(2, 3, 5))
            try:
                capacity = buffer.capacity
            except (AttributeError, LookupError, TypeError):
                capacity = 0
            if not capacity:
                names = " or ".join(f"self.{name}" for name in sorted(self.known.storage or {STORAGE}))
                text = f"{self.model_class} keeps no rows per level in {names}"
                raise SourceError(Reason(text, self.filename))
            buffer.get(3)
            buffer.clear(3)

    def _config(
        self, capacity: int, hidden: int, levels: int, dtype: torch.dtype, device: torch.device
    ) -> Settings:
        """Return the settings that the engine passes to the class."""
        model = self.known.model
        return vllm_config(
            capacity, hidden, levels, nested=model.nested, dtype=dtype, device=device,
            settings=model.parts.settings,
        )  # fmt: skip


class ForwardModels(BoundClass[ForwardHost]):
    """A class whose objects have a language model that records, in whatever way they are called."""

    def __call__(
        self, capacity: int, hidden: int, levels: int, *, dtype: torch.dtype, device: torch.device
    ) -> Buffer:
        """Run the class's own allocation: per level a (capacity, hidden) tensor, in most releases."""
        raise NotImplementedError

    def model(
        self,
        capacity: int,
        hidden: int,
        levels: int,
        *,
        dtype: torch.dtype,
        device: torch.device,
        convention: PayloadConvention | None = NAMED_LEVELS,
    ) -> ForwardHost:
        """Make an object of the class, whose language model looks for the payload by the `convention`.

        Without `convention` it records copies of all its arguments.

        Raises `UsageError` that names file and line when its `__init__` cannot be run.
        """

        def prepare(host: ForwardHost) -> None:
            missing = {name: Part(levels) for name in self.known.stood_in or ()}
            recorder = RecordingModel(hidden, dtype, device, self.known.model.parts.output, convention)
            recorder.levels = levels
            tower = DeepstackTower(levels)
            host.surround(Surroundings().tower, tower, missing, language_model=recorder)

        # Granite adds a level before each layer in `deepstack_layer_map` (pairs of a layer of the tower and
        # one of the decoder), then in `spatial_target_layers`: here level i goes to layer i, the last one
        # being spatial.
        last, model = levels - 1, self.known.model
        config = vllm_config(
            capacity, hidden, levels, nested=model.nested, dtype=dtype, device=device,
            settings=model.parts.settings, deepstack_layer_map=[[level, level] for level in range(last)],
            spatial_target_layers=[last], **TOKEN_IDS,
        )  # fmt: skip
        if self.known.stood_in is not None:
            config = LenientSettings(config, self.known.optional)
        return self._instance(config, dtype, device, prepare)


_TRIED_LEVELS, _TRIED_ROWS, _TRIED_HIDDEN = LEVELS_ALONE, 2, 5
"""Sizes of a rehearsal. They differ, so that the layout of a payload that is one tensor shows."""
_AROUND = frozenset({"input_ids", "positions", "intermediate_tensors", "inputs_embeds"})
"""Arguments of a language model that every engine passes."""


@dataclass(frozen=True)
class ForwardClass(ForwardModels):
    """A class whose own `embed_input_ids` and `forward` are called, by the `convention` of its rehearsal."""

    convention: PayloadConvention = NAMED_LEVELS

    @override
    def __call__(
        self, capacity: int, hidden: int, levels: int, *, dtype: torch.dtype, device: torch.device
    ) -> ForwardBuffer:
        """Run the class's own allocation: per level a (capacity, hidden) tensor, in most releases.

        Raises `UsageError` that names file and line when its `__init__` cannot be run.
        """
        convention = replace(self.convention, width=hidden)
        return ForwardBuffer(
            self.model(capacity, hidden, levels, dtype=dtype, device=device, convention=convention),
            convention,
            self.known.storage,
        )

    def rehearse(self) -> "ForwardClass":
        """Run a profile run, a text step and a visual step; return the class with its convention.

        Embeddings are given with the features that replace a token's own and without, and as each kind of
        token, until the levels arrive. Raises `UsageError` where a method needs what only the whole package
        has: in the middle of a run that would look like a fault of the class. Raises it too where no
        argument of the language model is a payload.
        """
        tried = [
            replace(NAMED_LEVELS, required=False, main_features=main, token=token)
            for main in (self.known.model.main_features, not self.known.model.main_features)
            for token in TOKEN_IDS.values()
        ]
        tried.append(replace(NAMED_LEVELS, required=False, by_token=True))
        raised: list[Exception] = []
        seen = [arrival for convention in tried for arrival in self._arrivals(convention, raised)]
        for wanted in (_Given.PAYLOAD, _Given.LEVELS, _Given.OTHER_ROWS):
            if accepted := [convention for convention, given in seen if given is wanted]:
                return replace(self, convention=accepted[0])
        constants = self.host.forward.__code__.co_consts  # names of keywords are a tuple among these
        if self.known.stood_in is None and any(
            PAYLOAD in names for names in constants if isinstance(names, tuple)
        ):
            # It loses its payload by itself, or raises: for the run to report.
            named = [convention for convention, _ in seen if convention.place == PAYLOAD]
            return replace(self, convention=(named or tried)[0])
        why = f": {raised[-1]}" if raised else ""
        text = f"{self.model_class} was given a payload, and passes no rows of it to its language model{why}"
        raise SourceError(Reason(text, self.filename, remains=True))

    def _arrivals(
        self, convention: PayloadConvention, raised: list[Exception]
    ) -> Iterator[tuple[PayloadConvention, "_Given"]]:
        """Yield what each argument of the language model was in a visual step.

        Errors of the class's own are added to `raised`.
        """
        host = self.model(
            4, _TRIED_HIDDEN, _TRIED_LEVELS, dtype=torch.float32, device=torch.device("cpu"), convention=None
        )
        buffer = ForwardBuffer(host, convention)
        payload = 1.0 + torch.arange(_TRIED_LEVELS * _TRIED_ROWS * _TRIED_HIDDEN, dtype=torch.float32)
        payload = payload.view(_TRIED_LEVELS, _TRIED_ROWS, _TRIED_HIDDEN)
        steps: tuple[Callable[[], object], ...] = (
            lambda: buffer.get(4),
            lambda: buffer.begin_step(3, profile=False),
            lambda: buffer.get(4),
            lambda: buffer.set(payload),
            lambda: buffer.get(_TRIED_ROWS),
        )

        def misses(error: Exception) -> bool:
            missed = misses_package(error)
            if not missed:
                raised.append(error)
            return missed

        for step in steps:
            with rehearsing(self.refusal, misses):
                step()
        if host.language_model.looks_up is not convention.by_token:
            return
        arguments = host.language_model.arguments
        for place, value in arguments.items():
            if place not in _AROUND:
                roles = dict.fromkeys(arguments, Role.OTHER)
                for other, argument in arguments.items():
                    if isinstance(argument, Tensor):
                        roles[other] = Role.HIDDEN if argument.is_floating_point() else Role.POSITIONS
                roles[place] = Role.PAYLOAD
                of_place = replace(convention, place=place, roles=tuple(roles.items()))
                yield _layout_of(of_place, value, payload)


class _Given(Enum):
    """One argument of a language model: the payload itself, levels of its shape, or of as many other rows."""

    PAYLOAD = auto()
    LEVELS = auto()
    OTHER_ROWS = auto()
    OTHER = auto()


def _layout_of(
    convention: PayloadConvention, value: object, payload: Tensor
) -> tuple[PayloadConvention, _Given]:
    """Return the layout in which `value` holds levels like those of `payload`, (levels, N, hidden)."""
    nearest = (convention, _Given.OTHER)
    for layout in Layout if isinstance(value, Tensor) else (None,):
        laid_out = replace(convention, layout=layout, sample=value)
        try:
            levels = levels_in(value, replace(laid_out, width=payload.size(2))) or ()
        except (UsageError, RuntimeError, IndexError):
            continue
        values: tuple[object, ...] = levels
        if len(levels) != len(payload) or not all(
            isinstance(level, Tensor) and level.is_floating_point() and level.shape[1:] == payload.shape[2:]
            for level in values
        ):
            continue
        if all(map(torch.equal, levels, payload)):
            return laid_out, _Given.PAYLOAD
        if all(level.shape == payload.shape[1:] for level in levels):
            nearest = (laid_out, _Given.LEVELS)
        elif nearest[1] is _Given.OTHER:
            nearest = (laid_out, _Given.OTHER_ROWS)
    return nearest
