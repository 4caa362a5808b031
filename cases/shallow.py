"""Families with as few layers as show a payload: what is counted or rounded does not depend on depth."""

from dataclasses import replace
from functools import cache

import torch

from deepstack_harness.families.by_name import family_named
from deepstack_harness.families.family import TinyFamily
from deepstack_harness.families.granite4_vision import Granite4VisionConfig
from deepstack_harness.play.model import Model
from deepstack_harness.probes.numerics import NumericsProbe


@cache
def shallow(name: str, dtype: torch.dtype = torch.float32) -> Model:
    """The family of that name with a level for each of two layers; compiles three times as fast."""
    torch.set_num_threads(1)
    family = family_named(name)
    assert isinstance(family, TinyFamily)
    targets = {"layerwise": (1,), "spatial": (0,)}
    levels = targets if isinstance(family.config, Granite4VisionConfig) else {"levels": 2}
    small = type(family)(replace(family.config, layers=2, **levels), name)
    decoder = small.build(dtype=dtype, device=torch.device("cpu"), seed=0)
    numerics = NumericsProbe(decoder, small.levels, small.hidden)
    return Model(small, decoder, numerics, dtype, torch.device("cpu"))
