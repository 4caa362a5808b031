"""Families with as few layers as show a payload: what is counted or rounded does not depend on depth."""

from dataclasses import replace
from functools import cache
from typing import Any

import torch

from deepstack_harness.catalogue.registry import family_named
from deepstack_harness.models.family import TinyFamily
from deepstack_harness.models.gemma4 import Gemma4Config
from deepstack_harness.models.granite4_vision import Granite4VisionConfig
from deepstack_harness.models.layers import DecoderConfig
from deepstack_harness.play.model import Model, NumericsProbe


@cache
def shallow(name: str, dtype: torch.dtype = torch.float32, layers: int = 2) -> Model:
    """The family of that name with a level for each of two layers; compiles twice as fast.

    A Qwen family may have a single one.
    """
    torch.set_num_threads(1)
    family = family_named(name)
    assert isinstance(family, TinyFamily)
    small = type(family)(replace(family.config, **_few(family.config, layers)), name)
    decoder = small.build(dtype=dtype, device=torch.device("cpu"), seed=0)
    numerics = NumericsProbe(decoder, small.levels, small.hidden, width=small.width)
    return Model(small, decoder, numerics, dtype, torch.device("cpu"))


def _few(config: DecoderConfig, layers: int) -> dict[str, Any]:
    """Return the changes by which a config has so few layers, and a level for each."""
    match config:
        case Granite4VisionConfig():
            return {"layers": 2, "layerwise": (1,), "spatial": (0,)}
        case Gemma4Config():
            return {"layers": 2}
    return {"layers": layers, "levels": layers}
