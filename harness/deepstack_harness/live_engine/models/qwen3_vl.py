"""Qwen3-VL, dense."""

from deepstack_harness.live_engine.models.qwen import qwen3_vl

QWEN3_VL = qwen3_vl("qwen3_vl", "Qwen3VLForConditionalGeneration")
