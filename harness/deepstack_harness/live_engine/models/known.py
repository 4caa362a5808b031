"""The families that an engine is started with."""

from collections.abc import Mapping
from types import MappingProxyType

from deepstack_harness.errors import unknown_name
from deepstack_harness.live_engine.models.granite4_vision import GRANITE4_VISION
from deepstack_harness.live_engine.models.qwen3_omni_moe_thinker import QWEN3_OMNI_MOE_THINKER
from deepstack_harness.live_engine.models.qwen3_vl import QWEN3_VL
from deepstack_harness.live_engine.models.qwen3_vl_moe import QWEN3_VL_MOE
from deepstack_harness.live_engine.models.tiny import TinyModel

MODELS: Mapping[str, TinyModel] = MappingProxyType(
    {model.family: model for model in (QWEN3_VL, GRANITE4_VISION, QWEN3_VL_MOE, QWEN3_OMNI_MOE_THINKER)}
)
"""All of them by family, in the order in which they are played."""


def model_of(family: str) -> TinyModel:
    """Return the tiny model of a family; raise `UsageError` for one that no engine is started with."""
    if family not in MODELS:
        raise unknown_name("family of an engine", family, MODELS)
    return MODELS[family]
