"""Tiny configurations of vLLM's classes, for `engines.tiny`: two to four layers of width 32.

An entry has what the class's own `__init__` reads of a checkpoint's configuration.  What is not given raises,
as it does for a checkpoint that lacks it.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from deepstack_harness.engines.tiny import HIDDEN, Config, Tiny

_MODELS = "vllm/model_executor/models"
_LAYERS = 4
_ROTARY = {"rope_theta": 10000.0, "rope_type": "default"}
_THREE_AXES = {**_ROTARY, "mrope_section": [2, 1, 1], "mrope_interleaved": True}
_TEXT: Mapping[str, Any] = MappingProxyType(
    {
        "hidden_size": HIDDEN, "num_hidden_layers": _LAYERS, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 64, "vocab_size": 64,
        "rms_norm_eps": 1e-6, "hidden_act": "silu", "max_position_embeddings": 256,
        "rope_parameters": _ROTARY, "rope_theta": 10000.0, "rope_scaling": None,
        "tie_word_embeddings": False, "attention_bias": False, "image_token_id": 1, "video_token_id": 2,
        "model_type": "tiny", "num_experts": 0, "pad_token_id": None, "mlp_only_layers": [],
        "decoder_sparse_step": 1, "layer_types": ["full_attention"] * _LAYERS,
    }
)  # fmt: skip
_EXPERTS = {
    "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "norm_topk_prob": True,
    "decoder_sparse_step": 1,
}  # fmt: skip


def _text(**more: object) -> Config:
    return Config(**{**_TEXT, **more})


def _qwen3_vl(_: object = None, **more: object) -> Config:
    text = _text(rope_parameters=_THREE_AXES, rope_scaling=_THREE_AXES, **more)
    vision = Config(deepstack_visual_indexes=[0, 1, 2], out_hidden_size=HIDDEN, spatial_merge_size=2)
    return _text(text_config=text, vision_config=vision)


def _qwen3_vl_moe(_: object = None) -> Config:
    return _qwen3_vl(**_EXPERTS)


def _qwen3_omni(_: object = None) -> Config:
    thinker = _qwen3_vl(**_EXPERTS)
    thinker.audio_token_id, thinker.audio_config = 5, Config()
    return Config(**{**vars(thinker), "thinker_config": thinker, "architectures": ["tiny"]})


def _moss_audio(module: Any) -> Config:  # noqa: ANN401  # a module of the engine
    config: Config = module.MossAudioConfig.__new__(module.MossAudioConfig)
    encoder = module.MossAudioEncoderConfig(output_dim=HIDDEN, deepstack_encoder_layer_indexes=[0, 1, 2])
    vars(config).update(
        _TEXT, audio_config=encoder, language_config=_text(), adapter_hidden_size=HIDDEN,
        deepstack_num_inject_layers=None,
    )  # fmt: skip
    return config


def _granite4_vision(_: object) -> Config:
    text = _text(
        embedding_multiplier=2.0, residual_multiplier=1.0, attention_multiplier=1.0, logits_scaling=1.0,
        mlp_bias=False, layers_block_type=["attention"] * _LAYERS,
    )  # fmt: skip
    return _text(
        text_config=text, vision_config=Config(), downsample_rate="1/2", spatial_vision_layer=-1,
        deepstack_layer_map=[[-3, 0], [-2, 1]], spatial_target_layers=[2], use_spatial_sampling=True,
        vision_feature_select_strategy="full", use_image_newline_parameter=False,
    )  # fmt: skip


def _cosmos3(_: object) -> Config:
    return _qwen3_vl()


def _cohere_compass(_: object) -> Config:
    text = _text(
        rope_parameters={"full_attention": _ROTARY}, layer_norm_eps=1e-5, sliding_window=8,
        tie_word_embeddings=True, logit_scale=None,
    )  # fmt: skip
    vision = Config(deepstack_visual_indexes=[0, 1, 2], out_hidden_size=HIDDEN, spatial_merge_size=2)
    return _text(text_config=text, vision_config=vision)


_VISION = ("Qwen3_VisionTransformer",)


def _tiny(file: str, config: Callable[[Any], object], **more: Any) -> Tiny:
    return Tiny(f"{_MODELS}/{file}.py", config, **more)


TINY: Mapping[str, Tiny] = MappingProxyType(
    {
        "Qwen3VLForConditionalGeneration": _tiny("qwen3_vl", _qwen3_vl, towers=_VISION),
        "Qwen3VLMoeForConditionalGeneration": _tiny(
            "qwen3_vl_moe", _qwen3_vl_moe, towers=_VISION, routed=True
        ),
        "Qwen3OmniMoeThinkerForConditionalGeneration": _tiny(
            "qwen3_omni_moe_thinker",
            _qwen3_omni,
            towers=("Qwen3OmniMoeAudioEncoder", "Qwen3Omni_VisionTransformer"),
            routed=True,
        ),
        "MossAudioModel": _tiny("moss_audio", _moss_audio, towers=("MossAudioEncoder",)),
        "Granite4VisionForConditionalGeneration": _tiny(
            "granite4_vision",
            _granite4_vision,
            main=0,
            towers=("SiglipVisionModel", "WindowQFormerDownsampler"),
        ),
        "CohereCompassForConditionalGeneration": _tiny(
            "cohere_compass", _cohere_compass, towers=("Cohere_VisionTransformer",)
        ),
        "Cosmos3ForConditionalGeneration": _tiny("cosmos3", _cosmos3, towers=_VISION),
    }
)
"""Class -> its configuration."""
