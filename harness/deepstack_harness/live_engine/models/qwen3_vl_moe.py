"""Qwen3-VL with a mixture of experts."""

from deepstack_harness.live_engine.models.qwen import MIXTURE, TEXT, qwen3_vl
from deepstack_harness.live_engine.models.tiny import ExpertLayout

QWEN3_VL_MOE = qwen3_vl(
    "qwen3_vl_moe", "Qwen3VLMoeForConditionalGeneration", {**TEXT, **MIXTURE}, ExpertLayout.TRANSPOSED
)
