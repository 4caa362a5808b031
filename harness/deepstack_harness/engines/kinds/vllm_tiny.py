"""Tiny configurations of vLLM's classes, for `engines.tiny`: two to four layers of width 32.

An entry has what the class's own `__init__` reads of a checkpoint's configuration.  What is not given raises,
as it does for a checkpoint without it.
"""

from collections.abc import Callable, Mapping
from copy import deepcopy
from types import MappingProxyType
from typing import Any

from deepstack_harness.engines.tiny import HIDDEN, Config, Tiny

_MODELS = "vllm/model_executor/models"
_LAYERS = 4  # one more than the levels: a layer without one is left
_ROTARY = {"rope_theta": 10000.0, "rope_type": "default"}
_BY_TYPE = {"full_attention": _ROTARY, "sliding_attention": _ROTARY}
_THREE_AXES = {**_ROTARY, "mrope_section": [2, 1, 1], "mrope_interleaved": True}
_FOURIER = {**_ROTARY, "fope_init_factor": 0.1, "fope_sep_head": True, "num_inv_freq": 4}
_TEXT: Mapping[str, Any] = MappingProxyType(
    {
        "hidden_size": HIDDEN, "num_hidden_layers": _LAYERS, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 64, "vocab_size": 64,
        "rms_norm_eps": 1e-6, "layer_norm_eps": 1e-5, "hidden_act": "silu", "max_position_embeddings": 256,
        "rope_parameters": _ROTARY, "rope_theta": 10000.0, "rope_scaling": None,
        "tie_word_embeddings": False, "attention_bias": False, "image_token_id": 1, "video_token_id": 2,
        "model_type": "tiny", "num_experts": 0, "pad_token_id": None, "mlp_only_layers": [],
        "decoder_sparse_step": 1, "layer_types": ["full_attention"] * _LAYERS,
    }
)  # fmt: skip
_EXPERTS: Mapping[str, Any] = {
    "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "norm_topk_prob": True,
    "decoder_sparse_step": 1, "shared_expert_intermediate_size": 16,
}  # fmt: skip
_PER_LAYER = {
    "vocab_size_per_layer_input": 64, "hidden_size_per_layer_input": 16, "num_kv_shared_layers": 0,
    "hidden_activation": "gelu_pytorch_tanh", "sliding_window": 8, "rope_parameters": _BY_TYPE,
    "final_logit_softcapping": None,
}  # fmt: skip


def _text(**more: object) -> Config:
    return Config(**{**_TEXT, **more})


_VISION = Config(deepstack_visual_indexes=[0, 1, 2], out_hidden_size=HIDDEN, spatial_merge_size=2)
_GEMMA4 = {**_PER_LAYER, "num_experts": None, "per_layer_config": [_text()] * _LAYERS}


def _fixed(**more: object) -> Callable[[object], Config]:
    """Return a maker of a configuration that does not depend on the module; models write to it."""
    return lambda _: deepcopy(_text(**more))


def _qwen3_vl(**more: object) -> Config:
    text = _text(**{"rope_parameters": _THREE_AXES, "rope_scaling": _THREE_AXES, **more})
    return _text(text_config=text, vision_config=_VISION)


def _qwen3_omni(_: object) -> Config:
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


def _per_layer(model: Any, ids: Any, payload: Any) -> Mapping[str, object]:  # noqa: ANN401
    """Pass inputs of each layer: embeddings of token ids that are drawn as the level; zeros are token 0."""
    if payload is not None:
        model.embed_input_ids((payload[:, HIDDEN].abs() * 20).long() % 64)
        embeddings = payload[:, :HIDDEN]
    else:
        embeddings = model.embed_input_ids(ids) if ids.any() else ids.new_zeros((len(ids), HIDDEN)).float()
    return {"input_ids": None, "inputs_embeds": embeddings}


def _token_types(_: object, __: object, payload: Any) -> Mapping[str, object]:  # noqa: ANN401
    """Pass the type of each token, as for a request that compares two texts; others have none."""
    return {} if payload is None else {"token_type_ids": (payload[:, 0] > 0).long()}


def _encoded(_: object, __: object, payload: object) -> Mapping[str, object]:
    """Pass the outputs of the encoder, as in the first step of a request; later ones find them in a cache."""
    return {"encoder_outputs": [] if payload is None else [payload]}


def _of_target(_: object, ids: Any, payload: object) -> Mapping[str, object]:  # noqa: ANN401
    """Pass the hidden states of the target, zeros in a profile run."""
    return {"hidden_states": ids.new_zeros((len(ids), HIDDEN)).float() if payload is None else payload}


def _tiny(file: str, config: Callable[[Any], object], **more: Any) -> Tiny:
    return Tiny(f"{_MODELS}/{file}.py", config, **more)


def _qwen(file: str, folder: str = _MODELS, **text: object) -> Tiny:
    towers, routed = ("Qwen3_VisionTransformer",), "num_experts" in text
    return Tiny(f"{folder}/{file}.py", lambda _: deepcopy(_qwen3_vl(**text)), towers=towers, routed=routed)


def _gemma(file: str, embedder: str, **text: object) -> Tiny:
    config = _fixed(text_config=_text(**text), vision_config=_text(), audio_config=None)
    return _tiny(file, config, levels=1, towers=("AutoModel", embedder), inputs=_per_layer)


def _bert(**more: object) -> Tiny:
    rotary = {"head_size": 8, "max_position": 256, "rope_parameters": _ROTARY}
    config = _fixed(
        **{
            "rotary_kwargs": rotary, "position_embedding_type": "rope", "type_vocab_size": 2,
            "hidden_act": "gelu", "bias": True, **more,
        }
    )  # fmt: skip
    argument = ("BertWithRope", "token_type_ids")
    return _tiny("bert_with_rope", config, levels=1, main=0, inputs=_token_types, argument=argument)


def _draft(file: str, **more: object) -> Tiny:
    return _tiny(file, _fixed(is_draft=True, **more), levels=1, main=0, inputs=_of_target)


def _transcriber(file: str, encoder: str, **more: object) -> Tiny:
    config = _fixed(is_encoder_decoder=True, **more)
    return _tiny(file, config, levels=1, main=0, towers=(encoder,), inputs=_encoded)


TINY: Mapping[str, Tiny] = MappingProxyType(
    {
        "Qwen3VLForConditionalGeneration": _qwen("qwen3_vl"),
        "Qwen3VLMoeForConditionalGeneration": _qwen("qwen3_vl_moe", **_EXPERTS),
        "Qwen3OmniMoeThinkerForConditionalGeneration": _tiny(
            "qwen3_omni_moe_thinker",
            _qwen3_omni,
            towers=("Qwen3OmniMoeAudioEncoder", "Qwen3Omni_VisionTransformer"),
            routed=True,
        ),
        "MossAudioModel": _tiny("moss_audio", _moss_audio, towers=("MossAudioEncoder",)),
        "Granite4VisionForConditionalGeneration": _tiny(
            "granite4_vision",
            _fixed(
                text_config=_text(
                    embedding_multiplier=2.0, residual_multiplier=1.0, attention_multiplier=1.0,
                    logits_scaling=1.0, mlp_bias=False, layers_block_type=["attention"] * _LAYERS,
                ),
                vision_config=Config(), downsample_rate="1/2", spatial_vision_layer=-1,
                deepstack_layer_map=[[-3, 0], [-2, 1]], spatial_target_layers=[2], use_spatial_sampling=True,
                vision_feature_select_strategy="full", use_image_newline_parameter=False,
            ),
            main=0,
            towers=("SiglipVisionModel", "WindowQFormerDownsampler"),
        ),
        "CohereCompassForConditionalGeneration": _tiny(
            "cohere_compass",
            _fixed(
                text_config=_text(
                    rope_parameters=_BY_TYPE, sliding_window=8, tie_word_embeddings=True, logit_scale=None
                ),
                vision_config=_VISION,
            ),
            towers=("Cohere_VisionTransformer",),
        ),
        "Cosmos3ForConditionalGeneration": _qwen("cosmos3"),
        "Gemma3nForConditionalGeneration": _gemma(
            "gemma3n_mm",
            "Gemma3nMultimodalEmbedder",
            **_PER_LAYER, laurel_rank=8, altup_num_inputs=2, altup_active_idx=0, altup_correct_scale=True,
            altup_coef_clip=None, query_pre_attn_scalar=8, rope_local_base_freq=1e4,
            activation_sparsity_pattern=[0.0] * _LAYERS, intermediate_size=[64] * _LAYERS,
        ),
        "Gemma4ForConditionalGeneration": _gemma("gemma4_mm", "Gemma4MultimodalEmbedder", **_GEMMA4),
        # With levels in its setting it allocates no storage for them: media are the payload.
        "InternS1ProForConditionalGeneration": _tiny(
            "interns1_pro",
            _fixed(
                text_config=_text(rope_parameters=_FOURIER, rope_scaling=_FOURIER, **_EXPERTS),
                vision_config=Config(out_hidden_size=HIDDEN, spatial_merge_size=2),
            ),
            levels=1, main=0, towers=("Qwen3_VisionTransformer",), routed=True,
        ),
        **{
            f"{maker}.Qwen4ExpForConditionalGeneration": _qwen(
                "model",
                f"vllm/models/qwen4_exp/{maker}",
                layer_types=["indexed_attention"] * _LAYERS, ple_layer_ids=[], hc_count=2, hc_lowrank=8,
                **_EXPERTS,
            )
            for maker in ("amd", "nvidia")
        },
        **dict.fromkeys(("BertWithRope", "NomicBertModel", "JinaRobertaModel"), _bert()),
        **dict.fromkeys(("GteNewModel", "SnowflakeGteNewModel"), _bert(hidden_act="geglu")),
        "WhisperForConditionalGeneration": _transcriber(
            "whisper",
            "WhisperEncoder",
            d_model=HIDDEN, decoder_layers=2, decoder_attention_heads=4, decoder_ffn_dim=64,
            activation_function="gelu", decoder_layerdrop=0.0, max_target_positions=256,
            max_source_positions=16, scale_embedding=False,
        ),
        "CohereAsrForConditionalGeneration": _transcriber(
            "cohere_asr",
            "ConformerEncoder",
            transf_decoder={
                "config_dict": {
                    "hidden_size": HIDDEN, "inner_size": 64, "hidden_act": "relu", "num_attention_heads": 4,
                    "num_layers": 2, "max_sequence_length": 256,
                }
            },
            head={"num_classes": 64, "hidden_size": HIDDEN},
        ),
        "EagleLlamaForCausalLM": _draft("llama_eagle"),
        "Eagle3LlamaForCausalLM": _draft("llama_eagle3"),
        "Eagle3Qwen3ForCausalLM": _draft("qwen3_eagle3"),
        "EagleMistralForCausalLM": _draft("mistral_eagle"),
        "EagleLlama4ForCausalLM": _draft(
            "llama4_eagle",
            yoco_global_kv_layer=None, yoco_local_kv_layer=None, moe_layers=[], no_rope_layers=[1] * _LAYERS,
            draft_vocab_size=64, use_qk_norm=True, interleave_moe_layer_step=0, intermediate_size_mlp=64,
            attention_chunk_size=None,
        ),
        "EagleMiniCPMForCausalLM": _draft(
            "minicpm_eagle", scale_depth=1.4, scale_emb=1, dim_model_base=HIDDEN, mup_denominator=4
        ),
        "EagleCohereForCausalLM": _draft("cohere_eagle", use_qk_norm=False, attention_dropout=0.0),
        "Qwen3NextMTP": _draft("qwen3_next_mtp", **_EXPERTS),
        "Qwen3_5MTP": _draft("qwen3_5_mtp", model_type="qwen3_5_moe_text", **_EXPERTS),
        "ExaoneMoeMTP": _draft(
            "exaone_moe_mtp",
            sliding_window=8, mlp_layer_types=["dense"] * _LAYERS, is_moe_layer=[False] * _LAYERS,
        ),
        "Gemma4MTP": _draft("gemma4_mtp", **_GEMMA4),
    }
)  # fmt: skip
"""Class -> its configuration."""
