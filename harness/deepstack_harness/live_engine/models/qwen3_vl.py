"""Qwen3-VL, dense."""

from deepstack_harness.live_engine.models.qwen import (
    IMAGE,
    SPECIAL,
    TEXT,
    VIDEO,
    VISION,
    folder_files,
    visual_ids,
)
from deepstack_harness.live_engine.models.tiny import TinyModel

_CLASS = "Qwen3VLForConditionalGeneration"
_CONFIG = {
    "architectures": [_CLASS], "model_type": "qwen3_vl", "dtype": "float32", "torch_dtype": "float32",
    "tie_word_embeddings": False, **visual_ids(), "text_config": {"model_type": "qwen3_vl_text", **TEXT},
    "vision_config": {"model_type": "qwen3_vl", **VISION},
}  # fmt: skip

QWEN3_VL = TinyModel(
    family="qwen3_vl", model_class=_CLASS, module="qwen3_vl",
    files=folder_files(_CONFIG, "Qwen3VLProcessor", "Qwen3VLVideoProcessor"), special=SPECIAL, image=IMAGE,
    video=VIDEO, payload="deepstack_merger_list", scales={"deepstack_merger_list": 4.0}, spreads={},
    renamed=None, main_features=True, driven="methods", limits={"image": 4, "video": 1},
)  # fmt: skip
