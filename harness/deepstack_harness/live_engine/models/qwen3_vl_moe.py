"""Qwen3-VL with a mixture of experts."""

from deepstack_harness.live_engine.models.qwen import (
    IMAGE,
    MIXTURE,
    SPECIAL,
    TEXT,
    VIDEO,
    VISION,
    folder_files,
    visual_ids,
)
from deepstack_harness.live_engine.models.tiny import ExpertLayout, TinyModel

_CLASS = "Qwen3VLMoeForConditionalGeneration"
_CONFIG = {
    "architectures": [_CLASS], "model_type": "qwen3_vl_moe", "dtype": "float32", "torch_dtype": "float32",
    "tie_word_embeddings": False, **visual_ids(),
    "text_config": {"model_type": "qwen3_vl_moe_text", **TEXT, **MIXTURE},
    "vision_config": {"model_type": "qwen3_vl_moe", **VISION},
}  # fmt: skip

QWEN3_VL_MOE = TinyModel(
    family="qwen3_vl_moe", model_class=_CLASS, module="qwen3_vl_moe",
    files=folder_files(_CONFIG, "Qwen3VLProcessor", "Qwen3VLVideoProcessor"), special=SPECIAL, image=IMAGE,
    video=VIDEO, payload="deepstack_merger_list", scales={"deepstack_merger_list": 4.0}, spreads={},
    renamed=None, main_features=True, driven="methods", limits={"image": 4, "video": 1},
    experts=ExpertLayout.TRANSPOSED,
)  # fmt: skip
