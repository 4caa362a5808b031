"""Replacements for parts of vLLM that a class names: each does what its code relies on, and no more.

A class that uses any other part is refused. `METHODS_STAND_INS` and `FORWARD_STAND_INS` are the tables of
names for the two ways to call a class. `Host` and `ForwardHost` take the place of a model's base class;
`RecordingModel` is a language model that computes nothing and records its arguments; `ForwardBuffer` gives an
object of such a class the `Buffer` interface, by calls of `embed_input_ids` and `forward`.
"""

import logging
import re
import sys
from collections.abc import Callable, Collection, ItemsView, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from enum import Enum, auto
from operator import attrgetter
from types import MappingProxyType
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from deepstack_harness.errors import StepUnavailable, UsageError


class IntermediateTensors:
    """Named tensors (n, hidden) (vllm/sequence.py); vLLM's own class can also be pickled and compared."""

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self.tensors = tensors

    def __getitem__(self, key: str | slice) -> object:
        if isinstance(key, str):
            return self.tensors[key]
        return type(self)({name: tensor[key] for name, tensor in self.tensors.items()})

    def __setitem__(self, key: str, tensor: Tensor) -> None:
        self.tensors[key] = tensor

    def items(self) -> ItemsView[str, Tensor]:
        """Return names and tensors (n, hidden)."""
        return self.tensors.items()

    def __len__(self) -> int:
        return len(self.tensors)


class StageMissingLayer(nn.Module):
    """The placeholder of a part of the model that was left out (vllm/model_executor/models/utils.py)."""


class VisionTower(nn.Module):
    """A vision tower without layers; its dtype and device are the ambient ones."""

    def __init__(self) -> None:
        super().__init__()
        ambient = torch.empty(0)
        self.dtype = ambient.dtype
        self.device = ambient.device


def init_logger(name: str) -> logging.Logger:
    """Return a logger with vLLM's `info_once` and the like (vllm/logger.py), here the same as `info`."""
    logger = logging.getLogger(f"deepstack_harness.engines.{name}")
    for level in ("debug", "info", "warning"):
        setattr(logger, f"{level}_once", getattr(logger, level))
    return logger


class Settings:
    """A configuration object of the engine; reading a setting that is missing raises, with its full name."""

    def __init__(self, path: str, **values: object) -> None:
        """Take `path`, the expression by which code reaches it, such as `vllm_config.model_config`."""
        self.__dict__.update(values)
        self._path = path

    def __getattr__(self, name: str) -> NoReturn:
        """Raise `AttributeError`: Python calls this for settings that were not given."""
        if name.startswith("__"):  # `copy` reads its own, also of an object without a path yet
            raise AttributeError(name)
        raise AttributeError(f"the harness has no {self._path}.{name}", name=name, obj=self)


class Unset:
    """Value of a setting that nobody gave: false, empty, zero, and the result of its own calls."""

    def __bool__(self) -> bool:
        return False

    def __len__(self) -> int:
        return 0

    def __index__(self) -> int:
        return 0

    def __iter__(self) -> Iterator[object]:
        return iter(())

    def __call__(self, *_: object, **__: object) -> "Unset":
        """Return this value, which has no results of its own."""
        return self

    def __getattr__(self, name: str) -> "Unset":
        """Return the same: nothing of it is set."""
        if name.startswith("__"):
            raise AttributeError(name)
        return self


class LenientSettings(Settings):
    """A configuration object whose unknown settings are `Unset`, and whose unknown parts are like its own.

    `optional` are names that the code reads with a default of its own: they are missing, so that the
    default counts.
    """

    def __init__(self, like: Settings, optional: Collection[str]) -> None:
        """Take the settings of `like`, and of all parts of it."""
        own = vars(like)
        values = {name: value for name, value in own.items() if not name.startswith("_")}
        parts = {name: value for name, value in values.items() if isinstance(value, Settings)}
        lenient = {name: LenientSettings(value, optional) for name, value in parts.items()}
        super().__init__(own["_path"], **{**values, **lenient})
        shared = {name: value for part in lenient.values() for name, value in vars(part).items()}
        self._shared = {name: value for name, value in shared.items() if not name.startswith("_")}
        self._optional = frozenset(optional)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  # a setting may be anything
        """Return `Unset`; an unknown part of the configuration has the settings of all its other parts."""
        if name.startswith("_") or name in self._optional:
            raise AttributeError(f"the harness has no {self._path}.{name}", name=name, obj=self)
        if name.endswith("config"):
            return LenientSettings(Settings(f"{self._path}.{name}", **self._shared), self._optional)
        return Unset()


class Part:
    """Replacement for a part of a model that cannot be built, and for a list of such parts, one per level.

    Called, it returns its first argument.
    """

    def __init__(self, levels: int) -> None:
        self._levels = levels

    def __len__(self) -> int:
        return self._levels

    def __iter__(self) -> Iterator["Part"]:
        return iter([self] * self._levels)

    def __getitem__(self, _: object) -> "Part":
        return self

    def __call__(self, *arguments: object, **_: object) -> object:
        """Return the first argument, in the place of an output."""
        return arguments[0] if arguments else self

    def __getattr__(self, name: str) -> "Part":
        """Return the same: a part of a part."""
        if name.startswith("__"):
            raise AttributeError(name)
        return self


def vllm_config(
    capacity: int,
    hidden: int,
    levels: int,
    *,
    nested: str | None,
    dtype: torch.dtype,
    device: torch.device,
    settings: Mapping[str, object] = MappingProxyType({}),
    **own: object,
) -> Settings:
    """Return the settings of an engine with `capacity` tokens a step.

    As in vllm/config: a model's Hugging Face configuration is `model_config.hf_config`, for
    Qwen3-Omni with the thinker's inside (`nested`).  The levels come from layers 0, 1, ... of the
    tower, since nothing here depends on them.  `settings` are further ones by their place, such as
    `model_config.multimodal_config`, `own` those of the model's configuration.
    """
    root = "vllm_config.model_config.hf_config"
    # Gemma's per-layer inputs are as wide as the levels are here, one for each layer.
    text = Settings(
        f"{root}.text_config",
        hidden_size=hidden,
        num_hidden_layers=levels,
        hidden_size_per_layer_input=hidden,
    )
    vision = Settings(
        f"{root}.vision_config", deepstack_visual_indexes=list(range(levels)), out_hidden_size=hidden
    )
    parts: dict[str, object] = {"text_config": text, "vision_config": vision, **own}
    # Qwen3-Omni's thinker is given the whole configuration, and in vLLM-Omni up to 0.20 only its own part.
    hf_config = Settings(root, **({nested: Settings(root, **parts)} if nested else {}), **parts)
    whole = Settings(
        "vllm_config",
        model_config=Settings(
            "vllm_config.model_config",
            dtype=dtype,
            hf_config=hf_config,
        ),
        scheduler_config=Settings("vllm_config.scheduler_config", max_num_batched_tokens=capacity),
        device_config=Settings("vllm_config.device_config", device=device),
    )
    for place, value in settings.items():
        path, _, name = place.rpartition(".")
        setattr(attrgetter(path)(whole) if path else whole, name, value)
    return whole


@dataclass(frozen=True)
class Surroundings:
    """The model around the buffer.

    `tower` makes the context in which the vision tower is built, such as
    `lambda: torch.device("meta")` for a tower that is skipped; then `vision` is False.
    """

    tower: Callable[[], AbstractContextManager[object]] = nullcontext
    vision: bool = True


class Host(nn.Module):
    """A base class of a source's classes, instead of those in vllm/model_executor/models/interfaces.py."""

    _around: tuple[Callable[[], AbstractContextManager[object]], nn.Module | None]

    def surround(
        self,
        tower: Callable[[], AbstractContextManager[object]],
        visual: nn.Module | None,
        missing: Mapping[str, Part] = MappingProxyType({}),
        **attributes: object,
    ) -> None:
        """Set what there is around the buffer, before `__init__` runs: `missing` parts cannot be built."""
        self.__dict__.update(_around=(tower, visual), _missing=missing, **attributes)

    def __init__(self) -> None:
        """Make an empty module, as the real bases do, except that it has its tower already."""
        super().__init__()
        self.visual = self._around[1]

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  # as in torch
        """Return what replaces a part; also the tower, where a class makes itself a module by name."""
        if name == "visual" and "_around" in self.__dict__:
            return self._around[1]
        missing = self.__dict__.get("_missing", {})
        return missing[name] if name in missing else super().__getattr__(name)

    def _mark_tower_model(self, *_: object, **__: object) -> AbstractContextManager[object]:
        return self._around[0]()

    def _mark_language_model(self, *_: object, **__: object) -> AbstractContextManager[object]:
        return nullcontext()


class FirstRank:
    """The only stage of a pipeline: both the first and the last rank of its group."""

    is_first_rank = True
    is_last_rank = True
    rank_in_group = 0
    world_size = 1


METHODS_STAND_INS: Mapping[str, object] = {
    "IntermediateTensors": IntermediateTensors,
    "StageMissingLayer": StageMissingLayer,
    "init_logger": init_logger,
}
"""What code finds under these names, where a class is called by its get, set and clear."""


FORWARD_STAND_INS: Mapping[str, object] = {
    **METHODS_STAND_INS,
    # A step without attention, as in a profile run (vllm/forward_context.py).
    "get_forward_context": lambda: Settings("get_forward_context()", attn_metadata=None),
    # An engine without stages (vllm/distributed/parallel_state.py).
    "get_pp_group": FirstRank,
}
"""What code finds under these names, where a class is called by its forward."""


PAYLOAD = "deepstack_input_embeds"
"""The argument by which most deepstack classes pass their payload to the language model."""

UNBOUNDED = sys.maxsize
"""The capacity of an engine without storage between steps: nothing limits what it is given."""


class Role(Enum):
    """An argument of a call of the language model, by what it is."""

    HIDDEN = auto()
    POSITIONS = auto()
    PAYLOAD = auto()
    OTHER = auto()


class Layout(Enum):
    """The layout of a payload that is one tensor, P rows of `width` for each level."""

    LEVELS_FIRST = "(levels, P, width)"
    ROWS_FIRST = "(P, levels, width)"
    IN_A_ROW = "(P, levels * width)"

    def split(self, rows: Tensor, width: int) -> tuple[Tensor, ...]:
        """Return the levels, each (P, width)."""
        if self is Layout.IN_A_ROW:
            return torch.tensor_split(rows, rows.size(-1) // width, dim=-1)
        return torch.unbind(rows, 0 if self is Layout.LEVELS_FIRST else 1)

    def join(self, levels: tuple[Tensor, ...]) -> Tensor:
        """Return the payload of levels, each (P, width)."""
        if self is Layout.IN_A_ROW:
            return torch.cat(levels, dim=-1)
        return torch.stack(levels, 0 if self is Layout.LEVELS_FIRST else 1)


@dataclass(frozen=True)
class PayloadConvention:
    """The way in which a class is given a payload, and passes it to its language model.

    `place` is the keyword or the position of the argument, which is missing from a call only where it is not
    `required`.  `layout` is that of a payload that is one tensor, of levels `width` wide.  With
    `main_features` each row of embeddings starts with what replaces the token's own; `token` is the id of a
    visual token.  A payload that is looked up `by_token` has rows for every token of a step.  `roles` has all
    arguments of a call, and `sample` a payload that was passed on.
    """

    place: str | int = PAYLOAD
    required: bool = True
    layout: Layout | None = None
    main_features: bool = True
    by_token: bool = False
    token: int = 1
    width: int = 1
    roles: tuple[tuple[str | int, Role], ...] = ()
    sample: object = None


NAMED_LEVELS = PayloadConvention()
"""Levels with names, under the keyword that vLLM uses."""

_EMBEDDING_MULTIPLIER = 2.0  # only Granite reads it; the payload must not depend on it


class StorageCopies:
    """Copies of tensors that the class under test changes right after it has shown them.

    One storage has one copy for as long as this object lives, so that addresses of copies are
    equal, or differ, exactly where those of the originals do.
    """

    def __init__(self) -> None:
        """Start without copies."""
        # With a reference to each original, or an allocator could reuse its address after it is freed.
        self._copies: dict[tuple[int, torch.dtype], tuple[Tensor, Tensor]] = {}

    def copy(self, shown: Tensor) -> Tensor:
        """Return a copy of `shown` as it is now: same shape, strides, offset, dtype and device."""
        if shown.device.type == "meta":
            return shown
        original = shown.untyped_storage()
        key = (original.data_ptr(), shown.dtype)
        if key not in self._copies:
            room = original.nbytes() // shown.element_size()
            self._copies[key] = (shown, torch.empty(room, dtype=shown.dtype, device=shown.device))
        copy = self._copies[key][1].as_strided(shown.size(), shown.stride(), shown.storage_offset())
        return copy.copy_(shown)


class RecordingModel:
    """Replacement of `self.language_model`, and of the text model inside it.

    It embeds every token to zeros (n, hidden), and records a copy of the payload of the last call.
    """

    def __init__(
        self,
        hidden: int,
        dtype: torch.dtype,
        device: torch.device,
        output: Callable[[object], object] = lambda hidden: hidden,
        convention: PayloadConvention | None = NAMED_LEVELS,
    ) -> None:
        """Make embeddings with `hidden` columns, of `dtype` on `device`.

        `output` makes the return value of a call out of hidden states (1, hidden). `convention` has the
        place of the payload in a call; without one, all arguments are recorded.
        """
        self.convention = convention
        self.arguments: dict[str | int, object] = {}
        """Copies of what the last call was given, by keyword or position; empty with a `convention`."""
        self._output = output
        self.config = Settings("language_model.model.config", embedding_multiplier=_EMBEDDING_MULTIPLIER)
        self.hidden = hidden
        self.device = device
        self.embed_tokens = nn.Embedding(1, hidden, dtype=dtype, device=device)
        self.looked_up: Tensor | None = None
        """The payload (levels, N, hidden) of the tokens that are embedded next, where it is looked up."""
        self.looks_up = False
        """Whether rows were looked up by token."""
        self.levels = 0
        self._embedding = torch.zeros(1, hidden, dtype=dtype, device=device)
        self._copies = StorageCopies()
        self._given: tuple[Tensor, ...] | None = None

    @property
    def model(self) -> "RecordingModel":
        """The text model."""
        return self

    def embed_input_ids(self, input_ids: Tensor) -> Tensor:
        """Return zeros (n, hidden) for ids (n,), new ones at every call: a class may write into them."""
        return self._embedding.repeat(input_ids.size(0), 1)

    def get_per_layer_inputs(self, input_ids: Tensor) -> Tensor:
        """Return the rows (n, levels * hidden) of ids (n,); zeros where none are known (Gemma 3n and 4)."""
        self.looks_up = True
        if self.looked_up is None:
            return self._embedding.new_zeros(input_ids.size(0), self.levels * self.hidden)
        return self.looked_up.to(self._embedding.dtype).permute(1, 0, 2).flatten(1)

    get_per_layer_input_embeddings = get_per_layer_inputs

    def __call__(self, *given: object, **named: object) -> object:
        """Record the payload; return hidden states (1, hidden) of zeros, as the engine's models do."""
        arguments: dict[str | int, object] = dict((*enumerate(given), *named.items()))
        if self.convention is None:
            self.arguments = {place: _copied(value) for place, value in arguments.items()}
        elif self.convention.required and self.convention.place not in arguments:
            raise UsageError(f"the language model is called without {self.convention.place}=")
        else:
            levels = levels_in(arguments.get(self.convention.place), self.convention)
            self._given = None if levels is None else tuple(map(self._copies.copy, levels))
        return self._output(self._embedding)

    def begin(self) -> None:
        """Forget the call of the step before."""
        self.arguments.clear()
        self._given = None

    def take(self) -> tuple[Tensor, ...] | None:
        """Return the payload of the last call in level order, each level (P, hidden), or None."""
        return self._given


def _copied(value: object) -> object:
    """Return a copy of what holds tensors: a class may change them right after it has passed them on."""
    if isinstance(value, IntermediateTensors):
        return IntermediateTensors({name: tensor.clone() for name, tensor in value.items()})
    if isinstance(value, Mapping):
        return {name: _copied(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        copies = map(_copied, value)
        return list(copies) if isinstance(value, list) else tuple(copies)
    return value.clone() if isinstance(value, Tensor) else value


_LAST_NUMBER = re.compile(r"(\d+)\D*$")


def levels_in(payload: object, convention: PayloadConvention = NAMED_LEVELS) -> tuple[Tensor, ...] | None:
    """Return the levels of a payload in any container, each (P, hidden); None where there is none.

    Named levels are in the order of the numbers in their names, `.._embeds_0` or layers `ds_3`, or, without
    numbers, in that of the container.  Raises `UsageError` for what has no levels.
    """
    if payload is None:
        return None
    tensors = getattr(payload, "tensors", payload)
    if isinstance(tensors, Mapping):
        return tuple(tensors[name] for name in _in_number_order(tensors))
    if isinstance(tensors, list | tuple):
        return tuple(tensors)
    if isinstance(tensors, Tensor) and convention.layout is not None:
        return convention.layout.split(tensors, convention.width)
    raise UsageError(f"the language model is given a {type(payload).__name__}, which has no levels")


def join_levels(convention: PayloadConvention, levels: tuple[Tensor, ...]) -> object:
    """Return levels, each (n, hidden), in the container in which a class passes them on."""
    sample = convention.sample
    if sample is None:  # the class never passed one on
        return IntermediateTensors({f"{PAYLOAD}_{level}": rows for level, rows in enumerate(levels)})
    if isinstance(sample, IntermediateTensors):
        names = map(str, _in_number_order(sample.tensors))
        return IntermediateTensors(dict(zip(names, levels, strict=True)))
    if isinstance(sample, Mapping):
        return dict(zip(_in_number_order(sample), levels, strict=True))
    if convention.layout is not None:
        return convention.layout.join(levels)
    return list(levels) if isinstance(sample, list) else levels


def _in_number_order(names: Iterable[object]) -> list[object]:
    """Sort names by the number at their end, where all end in different ones; else leave their order."""
    matches = {name: _LAST_NUMBER.search(str(name)) for name in names}
    numbers = {name: int(match[1]) for name, match in matches.items() if match}
    distinct = len(set(numbers.values())) == len(matches)
    return sorted(numbers, key=lambda name: numbers[name]) if distinct else list(matches)


TOKEN_IDS = {"image_token_id": 1, "video_token_id": 2, "audio_token_id": 3}
_TEXT_TOKEN = 0  # none of those above
_MAIN_FEATURE = 7.0  # no payload has it: a row of this value in a level was never set


def packed(payload: Tensor) -> Tensor:
    """Return visual embeddings (N, (1 + levels) * hidden) of a payload (levels, N, hidden).

    A row has what replaces the token's embedding, followed by the token's levels.
    """
    return torch.cat([payload.new_full(payload.shape[1:], _MAIN_FEATURE), *payload], dim=1)


class DeepstackTower(VisionTower):
    """A vision tower whose levels come from its layers 0, 1, ..."""

    def __init__(self, levels: int) -> None:
        super().__init__()
        self.deepstack_visual_indexes = list(range(levels))


class ForwardHost(Host):
    """A base class of classes whose `forward` is called: it has a language model that records."""

    language_model: RecordingModel

    def get_language_model(self) -> RecordingModel:
        """Return the language model, as SupportsMultiModal in vLLM's interfaces.py does."""
        return self.language_model

    def _embed_text_input_ids(self, input_ids: Tensor, *_: object, **__: object) -> Tensor:
        # vLLM masks token ids outside the vocabulary; here every id is in it.
        return self.language_model.embed_input_ids(input_ids)

    def embed_input_ids(
        self,
        input_ids: Tensor,
        multimodal_embeddings: "list[Tensor] | tuple[Tensor, ...] | None" = None,
        *,
        is_multimodal: Tensor | None = None,
        **_: object,
    ) -> Tensor:
        """Return embeddings (n, hidden) of token ids (n,), the marked rows replaced by visual ones.

        `super().embed_input_ids` does this in vLLM (SupportsMultiModal in interfaces.py). Other arguments of
        some releases, such as `handle_oov_mm_token` up to 0.17.1, are about masking ids outside the
        vocabulary.
        """
        embeddings = self.language_model.embed_input_ids(input_ids)
        if multimodal_embeddings:
            embeddings[is_multimodal] = torch.cat(tuple(multimodal_embeddings))
        return embeddings


class ForwardBuffer:
    """The buffer of one model object as the engine reaches it; see `protocols.Buffer`.

    As in the engine's model runner (vllm/v1/worker/gpu_model_runner.py): every
    scheduled step calls `embed_input_ids` with the unpadded tokens, visual or not,
    and then the model with the padded ones, by keyword; a profile run calls the model only.  Between the two
    the engine copies the embeddings to a tensor of its own, the same for every step.
    """

    def __init__(
        self,
        host: ForwardHost,
        convention: PayloadConvention | None = None,
        storage: Collection[str] = (),
    ) -> None:
        """Take `host`, the object after the class's own `__init__`.

        `convention` replaces that of its language model. `storage` are the attributes it stores into.
        """
        self._host = host
        self._recorder = host.language_model
        self._convention = convention or host.language_model.convention or NAMED_LEVELS
        self._storage = storage
        self._persistent = self._rows() is not None
        self._embedded = False
        self._text: int | None = None
        self._forwarded: int | None = None
        self._embeddings = self._recorder.embed_input_ids(torch.empty(0))

    @property
    def capacity(self) -> int:
        """Rows of the class's own storage; unbounded where it allocates none before its first step."""
        return (self._rows() or 0) if self._persistent else UNBOUNDED

    def _rows(self) -> int | None:
        values = {**vars(self._host), **vars(self._host).get("_buffers", {})}
        named = (getattr(self._host, name, None) for name in sorted(self._storage))
        rows = stored_rows(named, self._recorder.levels, in_objects=True)
        return stored_rows(values.values(), self._recorder.levels) if rows is None else rows

    def begin_step(self, tokens: int, *, profile: bool) -> None:
        """Announce that the next get belongs to a whole step, or to a profile run of the engine.

        A step embeds `tokens` tokens of text, unless tokens were embedded already.
        """
        self._text = None if profile or self._embedded else tokens

    def set(self, payload: Tensor, /) -> None:
        """Embed a step of N tokens, whose payload is (levels, N, hidden); N = 0 is one text token.

        Tokens whose rows are zero in all levels are text, unless all are: then all are visual.  Where the
        class changes the features that it is given, `payload` is filled with NaN: its caller caches them for
        later steps (vllm/v1/worker/gpu_model_runner.py, `encoder_cache`).
        """
        if payload.size(1) == 0:
            self._embed_text(1)
            return
        if self._convention.by_token:
            self._recorder.looked_up = payload
            try:
                self._embed_text(payload.size(1))
            finally:
                self._recorder.looked_up = None
            return
        is_visual = payload.ne(0).flatten(2).any(2).any(0)
        if not is_visual.any():
            is_visual = torch.ones_like(is_visual)
        rows = payload[:, is_visual]
        features = packed(rows) if self._convention.main_features else rows.permute(1, 0, 2).flatten(1)
        given = features.clone()
        # A single visual token is one image, and a longer run of them is two.
        runs = "".join("v" if visual else " " for visual in is_visual.tolist()).split()
        sizes = [size for run in runs for size in (len(run) // 2, len(run) - len(run) // 2) if size]
        self._embed(list(torch.split(given, sizes)), is_visual)
        if not torch.allclose(given, features, rtol=0, atol=0, equal_nan=True):
            with torch.no_grad():
                payload.fill_(torch.nan)

    def get(self, tokens: int, /) -> tuple[Tensor, ...] | None:
        """Run the model, and return the levels (P, hidden) that the language model was given.

        They are copies, made before the class cleared its rows.  Raises `StepUnavailable` for a
        negative count, which no engine step has, and `TypeError` where the model returned nothing.
        """
        if tokens < 0:
            raise StepUnavailable("the engine runs no step of fewer than 0 tokens")
        self.embed_step()
        self._forwarded = tokens
        embeddings = self._room(tokens)
        positions = torch.zeros(3, tokens, dtype=torch.int64, device=embeddings.device)
        self._recorder.begin()
        hidden: object = self._host(
            input_ids=None, positions=positions, intermediate_tensors=None, inputs_embeds=embeddings
        )
        if hidden is None:
            raise TypeError("forward returned None in place of hidden states")
        return self._recorder.take()

    def embed_step(self) -> None:
        """Embed the text of a step that was announced: the engine does it before a graph is replayed."""
        text, self._text = self._text, None
        if text is not None:
            self._embed_text(text)
        self._embedded = False

    def clear(self, tokens: int, /) -> None:
        """Do nothing: the forward of the get before has cleared its rows, or has failed to.

        Raises `StepUnavailable` where no get of as many tokens came right before.
        """
        if tokens != self._forwarded:
            raise StepUnavailable("the class clears inside its own forward only")
        self._forwarded = None

    def resize(self, tokens: int, /) -> None:
        """Raise `StepUnavailable`: the engine calls no resize."""
        raise StepUnavailable("the engine never resizes the buffer")

    def _embed_text(self, tokens: int) -> None:
        self._embed([], torch.zeros(tokens, dtype=torch.bool))

    def _embed(self, visual: list[Tensor], is_visual: Tensor) -> None:
        self._embedded, self._forwarded = True, None
        device = self._recorder.device
        ids = torch.where(is_visual, self._convention.token, _TEXT_TOKEN).to(device)
        embedded: object = self._host.embed_input_ids(
            ids, multimodal_embeddings=visual, is_multimodal=is_visual.to(device)
        )
        rows = self._room(len(ids))
        if isinstance(embedded, Tensor) and embedded.shape == rows.shape:
            rows.copy_(embedded)

    def _room(self, tokens: int) -> Tensor:
        """Return the engine's own rows (P, hidden) for the embeddings of a step."""
        if tokens > len(self._embeddings):
            self._embeddings = self._recorder.embed_input_ids(torch.empty(tokens))
        return self._embeddings[:tokens]


def stored_rows(values: Iterable[object], levels: int, *, in_objects: bool = False) -> int | None:
    """Return the rows of the first storage for levels: a container of matrices, or a stack of them.

    A stack is (levels, rows, hidden) or (rows, levels, hidden). With `in_objects` a value may be an object of
    the source that has such storage: its rows are its `capacity`, or those of its first storage.
    """
    for value in values:
        tensors = getattr(value, "tensors", value)
        rows = list(tensors.values()) if isinstance(tensors, Mapping) else tensors
        if isinstance(rows, Tensor) and rows.dim() == 3:
            return rows.size(1 if rows.size(0) == levels else 0)
        if (
            isinstance(rows, list | tuple)
            and rows
            and all(isinstance(level, Tensor) and level.dim() == 2 for level in rows)
        ):
            return int(rows[0].size(0))
        if in_objects and not isinstance(rows, Tensor | list | tuple) and hasattr(rows, "__dict__"):
            capacity = getattr(rows, "capacity", None)
            own = {**vars(rows), **vars(rows).get("_buffers", {})}
            found = capacity if isinstance(capacity, int) else stored_rows(own.values(), levels)
            if found is not None:
                return found
    return None
