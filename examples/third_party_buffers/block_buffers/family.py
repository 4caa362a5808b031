"""A decoder of two layers with two levels of payload."""

from deepstack_harness.models.qwen3_vl import Qwen3VLConfig, Qwen3VLFamily


class TwoLayers(Qwen3VLFamily):
    """Qwen3-VL's decoder, cut to two layers."""

    base = "two_layers"


FAMILY = TwoLayers(Qwen3VLConfig(layers=2, levels=2))
