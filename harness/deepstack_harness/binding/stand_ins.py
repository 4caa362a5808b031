"""What cut-out code finds in place of vLLM: plain things that do what is relied on, and nothing else.

Whatever is not here is refused, never guessed.
"""

import logging
from collections.abc import Callable, ItemsView, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import NoReturn

import torch
from torch import Tensor, nn


class IntermediateTensors:
    """Named tensors (vllm/sequence.py); the engine's one is picklable and comparable besides."""

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self.tensors = tensors

    def __getitem__(self, key: str | slice) -> object:
        if isinstance(key, str):
            return self.tensors[key]
        return type(self)({name: tensor[key] for name, tensor in self.tensors.items()})

    def __setitem__(self, key: str, tensor: Tensor) -> None:
        self.tensors[key] = tensor

    def items(self) -> ItemsView[str, Tensor]:
        """Names and tensors."""
        return self.tensors.items()

    def __len__(self) -> int:
        return len(self.tensors)


class StageMissingLayer(nn.Module):
    """Stands where a part of the model was left out (vllm/model_executor/models/utils.py)."""


class VisionTower(nn.Module):
    """Stands where the vision tower would be; its dtype and device are the ambient ones."""

    def __init__(self) -> None:
        super().__init__()
        ambient = torch.empty(0)
        self.dtype = ambient.dtype
        self.device = ambient.device


def init_logger(name: str) -> logging.Logger:
    """A logger with vLLM's `info_once` and the like (vllm/logger.py), here no different from `info`."""
    logger = logging.getLogger(f"deepstack_harness.binding.{name}")
    for level in ("debug", "info", "warning"):
        setattr(logger, f"{level}_once", getattr(logger, level))
    return logger


class Settings:
    """A configuration object of the engine; what it was not given it says by its full name."""

    def __init__(self, path: str, **values: object) -> None:
        """`path` is how cut code reaches it, such as `vllm_config.model_config`."""
        self.__dict__.update(values)
        self._path = path

    def __getattr__(self, name: str) -> NoReturn:
        """Only what was not given comes here."""
        raise AttributeError(f"the harness has no {self._path}.{name}", name=name, obj=self)


def vllm_config(
    capacity: int,
    hidden: int,
    levels: int,
    *,
    nested: str | None,
    dtype: torch.dtype,
    device: torch.device,
    **own: object,
) -> Settings:
    """The settings of an engine with `capacity` tokens a step.

    As in vllm/config: a model's Hugging Face configuration is
    `model_config.hf_config`, for Qwen3-Omni with the thinker's inside (`nested`).
    Which layers of the tower the levels come from means nothing here: 0, 1, ...
    `own` are further settings of the model's configuration.
    """
    root = "vllm_config.model_config.hf_config"
    text = Settings(f"{root}.text_config", hidden_size=hidden)
    vision = Settings(
        f"{root}.vision_config", deepstack_visual_indexes=list(range(levels)), out_hidden_size=hidden
    )
    model = Settings(root, text_config=text, vision_config=vision, **own)
    return Settings(
        "vllm_config",
        model_config=Settings(
            "vllm_config.model_config",
            dtype=dtype,
            hf_config=Settings(root, **{nested: model}) if nested else model,
        ),
        scheduler_config=Settings("vllm_config.scheduler_config", max_num_batched_tokens=capacity),
        device_config=Settings("vllm_config.device_config", device=device),
    )


@dataclass(frozen=True)
class Surroundings:
    """How the model is built around the buffer.

    `tower` makes the context in which the vision tower is built, as
    `lambda: torch.device("meta")` for a tower that is skipped; `vision` is
    False when it is.
    """

    tower: Callable[[], AbstractContextManager[object]] = nullcontext
    vision: bool = True


class Host(nn.Module):
    """Takes the place of the model class's bases (vllm/model_executor/models/interfaces.py)."""

    GIVEN = frozenset({"visual"})
    _around: tuple[Callable[[], AbstractContextManager[object]], nn.Module | None]

    def surround(self, tower: Callable[[], AbstractContextManager[object]], visual: nn.Module | None) -> None:
        """Say, before `__init__`, what there is around the buffer."""
        self.__dict__["_around"] = (tower, visual)

    def __init__(self) -> None:
        """An empty module, as the real bases make, except that it has its tower already."""
        super().__init__()
        self.visual = self._around[1]

    def _mark_tower_model(self, *_: object, **__: object) -> AbstractContextManager[object]:
        return self._around[0]()

    def _mark_language_model(self, *_: object, **__: object) -> AbstractContextManager[object]:
        return nullcontext()


STAND_INS: Mapping[str, object] = {
    "IntermediateTensors": IntermediateTensors,
    "StageMissingLayer": StageMissingLayer,
    "init_logger": init_logger,
}
