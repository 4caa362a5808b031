"""Stand-ins for the parts of vLLM that cut code names: each does what that code relies on, and no more.

A part that has no stand-in here is refused, never guessed.
"""

import logging
from collections.abc import Callable, ItemsView, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from operator import attrgetter
from types import MappingProxyType
from typing import NoReturn

import torch
from torch import Tensor, nn


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
    logger = logging.getLogger(f"deepstack_harness.binding.{name}")
    for level in ("debug", "info", "warning"):
        setattr(logger, f"{level}_once", getattr(logger, level))
    return logger


class Settings:
    """A configuration object of the engine; reading a setting that it lacks raises, with its full name."""

    def __init__(self, path: str, **values: object) -> None:
        """Take `path`, the expression by which cut code reaches it, such as `vllm_config.model_config`."""
        self.__dict__.update(values)
        self._path = path

    def __getattr__(self, name: str) -> NoReturn:
        """Raise `AttributeError`: Python calls this for settings that were not given."""
        if name.startswith("__"):  # `copy` asks for its own, also of an object without a path yet
            raise AttributeError(name)
        raise AttributeError(f"the harness has no {self._path}.{name}", name=name, obj=self)


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
    text = Settings(f"{root}.text_config", hidden_size=hidden)
    vision = Settings(
        f"{root}.vision_config", deepstack_visual_indexes=list(range(levels)), out_hidden_size=hidden
    )
    parts: dict[str, object] = {"text_config": text, "vision_config": vision, **own}
    # Qwen3-Omni's thinker is given the whole configuration, and in vLLM-Omni up to 0.20 its own part alone.
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
    """The base class of cut classes, instead of those in vllm/model_executor/models/interfaces.py."""

    _around: tuple[Callable[[], AbstractContextManager[object]], nn.Module | None]

    def surround(self, tower: Callable[[], AbstractContextManager[object]], visual: nn.Module | None) -> None:
        """Set what there is around the buffer, before `__init__` runs."""
        self.__dict__["_around"] = (tower, visual)

    def __init__(self) -> None:
        """Make an empty module, as the real bases do, except that it has its tower already."""
        super().__init__()
        self.visual = self._around[1]

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


def get_pp_group() -> FirstRank:
    """Return the pipeline group (vllm/distributed/parallel_state.py) of an engine without stages."""
    return FirstRank()


METHODS_STAND_INS: Mapping[str, object] = {
    "IntermediateTensors": IntermediateTensors,
    "StageMissingLayer": StageMissingLayer,
    "init_logger": init_logger,
}
"""The objects for `cut_model.BY_METHODS.stand_ins`."""

FORWARD_STAND_INS: Mapping[str, object] = {**METHODS_STAND_INS, "get_pp_group": get_pp_group}
"""The objects for `cut_model.BY_FORWARD.stand_ins`."""
