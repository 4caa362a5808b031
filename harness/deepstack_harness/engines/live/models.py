"""Tiny models with random weights, one `TinyModel` per family that an engine is started with.

A model folder holds a configuration, a tokenizer and a processor.  Sizes are the smallest that keep three
payload levels, two attention heads and a vision tower; the vocabulary is the 256 bytes and the special
tokens, so that no tokenizer has to be downloaded.  The families of Qwen3 share special tokens, decoder,
vision tower, tokenizer and processor.  Of Qwen3-Omni this is the thinker: the part that reads images and
writes text.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from deepstack_harness.errors import unknown_name

BYTES = 256
"""Tokens for single bytes; the special tokens follow them."""
VOCABULARY = 320
"""Bytes, and room for special tokens."""


class ExpertLayout(StrEnum):
    """A way in which a checkpoint has the experts of a mixture.

    transformers holds (experts, out, in).  TRANSPOSED has (experts, in, out), APART each expert by itself,
    gate and up projections too.
    """

    TRANSPOSED = "transposed"
    APART = "apart"


@dataclass(frozen=True)
class TinyModel:
    """One family as an engine loads it.

    `files` are JSON files of the folder.  `model_class` is the class of transformers, and of the engine, in
    its `module`.  `image` and `video` are the placeholders in a prompt, None where the family has none.
    Weights are normal random numbers: parameters whose name contains a key of `scales` are multiplied,
    those with a key of `spreads` get that standard deviation.  `payload` names the parameters that make the
    deepstack payload: with them at zero the model runs without.  `renamed` turns names of transformers
    into those of released checkpoints.  With `main_features` a row of visual embeddings starts with what
    replaces the token embedding, and the levels follow.  `limits` is the most items of each kind in a
    request.  `nested` is the attribute of the folder's configuration that `model_class` takes, "" for all.
    `experts` is the way in which released checkpoints of the family have the experts of a mixture.

    `medium` is "image" or "audio": an audio family gets a waveform where another one gets a picture.
    `weights` has name and shape of each parameter where transformers has no such class; there is then no
    output of transformers to compare with.  `config_class` describes the configuration class that released
    folders bring as code of their own: its `model_type`, and the attribute with the text configuration.
    `driven` is what is watched: "methods" (get, set, clear), "forward" (buffers that `forward` reads), or
    "attribute" (a payload that `embed_input_ids` stores and `forward` passes on, None where there is none).
    """

    family: str
    model_class: str
    module: str
    files: Mapping[str, Any]
    special: tuple[str, ...]
    image: str
    video: str | None
    payload: str
    scales: Mapping[str, float]
    spreads: Mapping[str, float]
    renamed: tuple[str, str] | None
    main_features: bool
    driven: str
    limits: Mapping[str, int]
    nested: str = ""
    experts: ExpertLayout | None = None
    logprobs: int = VOCABULARY
    medium: str = "image"
    weights: Mapping[str, tuple[int, ...]] | None = None
    config_class: Mapping[str, str] | None = None

    def job(self) -> dict[str, Any]:
        """Return what the child needs to make the folder."""
        return {
            "files": dict(self.files), "special": self.special, "model_class": self.model_class,
            "payload": self.payload, "scales": dict(self.scales), "spreads": dict(self.spreads),
            "renamed": self.renamed, "nested": self.nested,
            "experts": self.experts, "weights": self.weights,
        }  # fmt: skip


def token_ids(special: tuple[str, ...]) -> dict[str, int]:
    """Return the ids of special tokens, which follow the bytes."""
    return {name: BYTES + number for number, name in enumerate(special)}


TEMPLATE = {"chat_template": "{% for m in messages %}{{m['content']}}{% endfor %}"}
"""A chat template without roles."""
PIXELS = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
"""Settings of every image processor."""


HIDDEN = 64
"""The hidden size of all tiny models: two heads of 32."""
IMAGE = "<|vision_start|><|image_pad|><|vision_end|>"
VIDEO = "<|vision_start|><|video_pad|><|vision_end|>"
SPECIAL = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>",
    "<|image_pad|>", "<|video_pad|>",
)  # fmt: skip

TEXT: Mapping[str, Any] = {
    "dtype": "float32", "hidden_size": HIDDEN, "intermediate_size": 128, "num_hidden_layers": 4,
    "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32, "hidden_act": "silu",
    "rms_norm_eps": 1e-6, "vocab_size": VOCABULARY, "max_position_embeddings": 4096, "rope_theta": 10000.0,
    "attention_bias": False, "bos_token_id": token_ids(SPECIAL)["<|endoftext|>"],
    "eos_token_id": token_ids(SPECIAL)["<|im_end|>"], "tie_word_embeddings": False, "use_cache": True,
    "rope_scaling": {
        "rope_type": "default", "type": "default", "mrope_interleaved": True, "mrope_section": [6, 5, 5],
    },
}  # fmt: skip
"""The decoder, less its `model_type`."""

MIXTURE: Mapping[str, Any] = {
    "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "decoder_sparse_step": 1,
    "mlp_only_layers": [], "norm_topk_prob": True,
}  # fmt: skip
"""The experts of a mixture: two of four for each token."""

VISION: Mapping[str, Any] = {
    "depth": 4, "hidden_size": 64, "intermediate_size": 128, "num_heads": 2, "in_channels": 3,
    "patch_size": 16, "spatial_merge_size": 2, "temporal_patch_size": 2, "out_hidden_size": HIDDEN,
    "num_position_embeddings": 64, "deepstack_visual_indexes": [0, 1, 2], "hidden_act": "gelu_pytorch_tanh",
}  # fmt: skip
"""The vision tower, less its `model_type`: three payload levels."""


def visual_ids(special: tuple[str, ...] = SPECIAL) -> dict[str, int]:
    """Return the settings that name placeholders in the ids of a prompt."""
    ids = token_ids(special)
    return {
        "image_token_id": ids["<|image_pad|>"], "video_token_id": ids["<|video_pad|>"],
        "vision_start_token_id": ids["<|vision_start|>"], "vision_end_token_id": ids["<|vision_end|>"],
    }  # fmt: skip


def qwen3_vl(
    family: str, model_class: str, text: Mapping[str, Any] = TEXT, experts: ExpertLayout | None = None
) -> TinyModel:
    """Return a family of Qwen3-VL, whose module and `model_type` have its name, with this decoder."""
    config = {
        "architectures": [model_class], "model_type": family, "dtype": "float32", "torch_dtype": "float32",
        "tie_word_embeddings": False, **visual_ids(), "text_config": {"model_type": f"{family}_text", **text},
        "vision_config": {"model_type": family, **VISION},
    }  # fmt: skip
    return TinyModel(
        family=family, model_class=model_class, module=family,
        files=folder_files(config, "Qwen3VLProcessor", "Qwen3VLVideoProcessor"), special=SPECIAL,
        image=IMAGE, video=VIDEO, payload="deepstack_merger_list", scales={"deepstack_merger_list": 4.0},
        spreads={}, renamed=None, main_features=True, driven="methods", limits={"image": 4, "video": 1},
        experts=experts,
    )  # fmt: skip


def folder_files(
    config: Mapping[str, Any], processor: str, video_processor: str, special: tuple[str, ...] = SPECIAL
) -> dict[str, Any]:
    """Return the files of a model folder, with the names of its processor classes."""
    ids = token_ids(special)
    patches = {**PIXELS, "patch_size": 16, "temporal_patch_size": 2, "merge_size": 2,
               "size": {"shortest_edge": 1024, "longest_edge": 65536},
               "processor_class": processor}  # fmt: skip
    flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}
    tokenizer = {
        "tokenizer_class": "Qwen2Tokenizer", "model_max_length": 4096, "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>", "unk_token": None, "bos_token": None, "add_prefix_space": False,
        "clean_up_tokenization_spaces": False, "errors": "replace", "split_special_tokens": False,
        "additional_special_tokens": special[1:],
        "added_tokens_decoder": {str(number): {"content": name, **flags} for name, number in ids.items()},
    }  # fmt: skip
    return {
        "config.json": config,
        "tokenizer_config.json": tokenizer,
        "preprocessor_config.json": {**patches, "image_processor_type": "Qwen2VLImageProcessorFast"},
        "video_preprocessor_config.json": {**patches, "video_processor_type": video_processor},
        "generation_config.json": {"eos_token_id": ids["<|im_end|>"], "pad_token_id": ids["<|endoftext|>"]},
        "chat_template.json": TEMPLATE,
    }


QWEN3_VL = qwen3_vl("qwen3_vl", "Qwen3VLForConditionalGeneration")


QWEN3_VL_MOE = qwen3_vl(
    "qwen3_vl_moe", "Qwen3VLMoeForConditionalGeneration", {**TEXT, **MIXTURE}, ExpertLayout.TRANSPOSED
)


_SPECIAL_OMNI = (*SPECIAL, "<|audio_start|>", "<|audio_end|>", "<|audio_pad|>")
_IDS_OMNI = token_ids(_SPECIAL_OMNI)
# No request has audio; the tower is the smallest that both transformers and vLLM build.
_AUDIO = {
    "model_type": "qwen3_omni_moe_audio_encoder", "d_model": 32, "encoder_layers": 1,
    "encoder_attention_heads": 2, "encoder_ffn_dim": 64, "num_mel_bins": 128, "output_dim": HIDDEN,
    "downsample_hidden_size": 16, "n_window": 50, "n_window_infer": 800, "max_source_positions": 1500,
}  # fmt: skip
# 8 x 8 positions of patches of 16 pixels; transformers takes them from `num_position_embeddings`.
_VISION_OMNI = {
    "model_type": "qwen3_omni_moe_vision_encoder",
    **VISION,
    "image_size": 128,
    "apply_vit_abs_pos_embed": True,
}
_THINKER = {
    "model_type": "qwen3_omni_moe_thinker", "dtype": "float32", "torch_dtype": "float32",
    **visual_ids(_SPECIAL_OMNI), "audio_token_id": _IDS_OMNI["<|audio_pad|>"],
    "audio_start_token_id": _IDS_OMNI["<|audio_start|>"], "audio_end_token_id": _IDS_OMNI["<|audio_end|>"],
    "audio_config": _AUDIO, "vision_config": _VISION_OMNI,
    "text_config": {"model_type": "qwen3_omni_moe_text", **TEXT, **MIXTURE},
    "tie_word_embeddings": False, "position_id_per_seconds": 13,
}  # fmt: skip
_CONFIG_OMNI = {
    "architectures": ["Qwen3OmniMoeForConditionalGeneration"], "model_type": "qwen3_omni_moe",
    "dtype": "float32", "torch_dtype": "float32", "enable_audio_output": False, "thinker_config": _THINKER,
}  # fmt: skip
_FILES_OMNI = folder_files(
    _CONFIG_OMNI,
    "Qwen3OmniMoeProcessor",
    "Qwen2VLVideoProcessor",
    _SPECIAL_OMNI,
)
# One file for both, as in released folders.
_FILES_OMNI["preprocessor_config.json"] |= {
    "feature_extractor_type": "WhisperFeatureExtractor", "feature_size": 128, "sampling_rate": 16000,
    "hop_length": 160, "n_fft": 400, "chunk_length": 30, "padding_value": 0.0, "return_attention_mask": True,
}  # fmt: skip
_FILES_OMNI["tokenizer_config.json"]["extra_special_tokens"] = {
    "image_token": "<|image_pad|>", "video_token": "<|video_pad|>", "audio_token": "<|audio_pad|>",
    "vision_bos_token": "<|vision_start|>", "vision_eos_token": "<|vision_end|>",
    "audio_bos_token": "<|audio_start|>", "audio_eos_token": "<|audio_end|>",
}  # fmt: skip

QWEN3_OMNI_MOE_THINKER = TinyModel(
    family="qwen3_omni_moe_thinker", model_class="Qwen3OmniMoeThinkerForConditionalGeneration",
    module="qwen3_omni_moe_thinker", files=_FILES_OMNI, special=_SPECIAL_OMNI, image=IMAGE,
    video=None,
    payload="merger_list", scales={"merger_list": 4.0}, spreads={}, renamed=None, main_features=True,
    driven="methods", limits={"image": 4, "video": 0, "audio": 0}, nested="thinker_config",
    experts=ExpertLayout.APART,
)  # fmt: skip


_SPECIAL_GRANITE = ("<|endoftext|>", "<|end_of_text|>", "<|pad|>", "<image>")
_IDS_GRANITE = token_ids(_SPECIAL_GRANITE)
_SIDE, _PATCH = 64, 16
_PINPOINTS = [[_SIDE, _SIDE], [_SIDE, 2 * _SIDE], [2 * _SIDE, _SIDE]]
_TEXT = {
    "model_type": "granite4_vision_text", "hidden_size": 64, "intermediate_size": 128,
    "num_hidden_layers": 8, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32,
    "vocab_size": VOCABULARY, "max_position_embeddings": 4096, "rms_norm_eps": 1e-6, "hidden_act": "silu",
    "rope_theta": 10000.0, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    "embedding_multiplier": 2.0, "logits_scaling": 2.0, "residual_multiplier": 0.5,
    "attention_multiplier": 32**-0.5, "tie_word_embeddings": False,
    "bos_token_id": _IDS_GRANITE["<|endoftext|>"],
    "eos_token_id": _IDS_GRANITE["<|end_of_text|>"], "pad_token_id": _IDS_GRANITE["<|pad|>"],
    "dtype": "float32",
}  # fmt: skip
_VISION_GRANITE = {
    "model_type": "siglip_vision_model", "hidden_size": 64, "intermediate_size": 128,
    "num_hidden_layers": 4, "num_attention_heads": 2, "image_size": _SIDE, "patch_size": _PATCH,
    "num_channels": 3, "vision_use_head": False,
}  # fmt: skip
_CONFIG_GRANITE = {
    "architectures": ["Granite4VisionForConditionalGeneration"], "model_type": "granite4_vision",
    "dtype": "float32", "torch_dtype": "float32", "image_token_index": _IDS_GRANITE["<image>"],
    "image_token_id": _IDS_GRANITE["<image>"], "tie_word_embeddings": False, "text_config": _TEXT,
    "vision_config": _VISION_GRANITE, "vision_feature_select_strategy": "full", "vision_feature_layer": -1,
    "image_grid_pinpoints": _PINPOINTS, "image_seq_length": 4, "downsample_rate": "1/2",
    "deepstack_layer_map": [[-4, 0], [-3, 1], [-2, 2]], "spatial_vision_layer": -1,
    "spatial_target_layers": [3, 4, 5, 6], "projector_dropout": 0.0,
}  # fmt: skip
_PROCESSOR = {
    **PIXELS, "image_processor_type": "LlavaNextImageProcessor", "size": {"height": _SIDE, "width": _SIDE},
    "crop_size": {"height": _SIDE, "width": _SIDE}, "do_center_crop": True, "do_resize": True,
    "do_rescale": True, "rescale_factor": 1 / 255, "do_normalize": True, "do_pad": True,
    "do_convert_rgb": True, "resample": 3, "image_grid_pinpoints": _PINPOINTS,
    "processor_class": "Granite4VisionProcessor",
}  # fmt: skip
_FILES_GRANITE = {
    "config.json": _CONFIG_GRANITE,
    "preprocessor_config.json": _PROCESSOR,
    "processor_config.json": {
        "processor_class": "Granite4VisionProcessor", "patch_size": _PATCH,
        "vision_feature_select_strategy": "full", "num_additional_image_tokens": 0,
        "downsample_rate": "1/2", "image_token": "<image>",
    },
    "tokenizer_config.json": {
        "tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|end_of_text|>",
        "pad_token": "<|pad|>", "additional_special_tokens": ["<image>"], "model_max_length": 4096,
    },
    "generation_config.json": {"eos_token_id": _IDS_GRANITE["<|end_of_text|>"],
    "pad_token_id": _IDS_GRANITE["<|pad|>"]},
    "chat_template.json": TEMPLATE,
}  # fmt: skip

GRANITE4_VISION = TinyModel(
    family="granite4_vision", model_class="Granite4VisionForConditionalGeneration",
    module="granite4_vision", files=_FILES_GRANITE, special=_SPECIAL_GRANITE, image="<image>", video=None,
    payload="out_linear", scales={"out_linear": 3.0},
    spreads={".query": 0.3, ".image_positions": 0.3, "image_newline": 0.5},
    # transformers 5.19 has no level `vision_model` in these names; vLLM 0.32 loads only names with it.
    renamed=("model.vision_tower.", "model.vision_tower.vision_model."),
    main_features=False, driven="forward", limits={"image": 4},
)  # fmt: skip


_SPECIAL_MOSS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|AUDIO|>", "<|audio_bos|>", "<|audio_eos|>")
_IDS_MOSS = token_ids(_SPECIAL_MOSS)
_AUDIO_WIDTH, _CHANNELS, _INNER, _MERGERS, _LAYERS = 64, 8, 128, 3, 4
_LANGUAGE_MOSS = {
    "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "dtype": "float32", "hidden_size": HIDDEN,
    "intermediate_size": _INNER, "num_hidden_layers": _LAYERS, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 32, "vocab_size": VOCABULARY, "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "hidden_act": "silu", "attention_bias": False,
    "tie_word_embeddings": False, "bos_token_id": _IDS_MOSS["<|endoftext|>"],
    "eos_token_id": _IDS_MOSS["<|im_end|>"],
}  # fmt: skip
_CONFIG_MOSS = {
    "architectures": ["MossAudioModel"], "model_type": "moss_audio", "dtype": "float32",
    "torch_dtype": "float32", "tie_word_embeddings": False, "adapter_hidden_size": _AUDIO_WIDTH,
    "deepstack_num_inject_layers": _MERGERS, "language_config": _LANGUAGE_MOSS,
    "audio_config": {
        "d_model": _AUDIO_WIDTH, "output_dim": _AUDIO_WIDTH, "num_mel_bins": 128,
        "encoder_layers": _LAYERS, "encoder_attention_heads": 2, "encoder_ffn_dim": _INNER,
        "downsample_hidden_size": _CHANNELS,
        "n_window": 200,  # twice of it has to be a multiple of 8
        "max_source_positions": 1500, "deepstack_encoder_layer_indexes": [1, 2, 3],
    },
}  # fmt: skip


def _weights_of_moss() -> dict[str, tuple[int, ...]]:
    """Return name and shape of each parameter of a released MOSS-Audio checkpoint, at these sizes."""
    width, shapes = _AUDIO_WIDTH, dict[str, tuple[int, ...]]()

    def add(name: str, *shape: int, bias: bool = False) -> None:
        shapes[f"{name}.weight"] = shape
        if bias:
            shapes[f"{name}.bias"] = shape[:1]

    for number, channels in ((1, 1), (2, _CHANNELS), (3, _CHANNELS)):
        add(f"audio_encoder.conv{number}", _CHANNELS, channels, 3, 3, bias=True)
    add("audio_encoder.stem_proj", width, _CHANNELS * 16, bias=True)  # 128 mel bins, halved three times
    for number in range(_LAYERS):
        layer = f"audio_encoder.layers.{number}"
        for name in ("q_proj", "v_proj", "out_proj"):
            add(f"{layer}.self_attn.{name}", width, width, bias=True)
        add(f"{layer}.self_attn.k_proj", width, width)
        add(f"{layer}.fc1", _INNER, width, bias=True)
        add(f"{layer}.fc2", width, _INNER, bias=True)
        for name in ("self_attn_layer_norm", "final_layer_norm"):
            add(f"{layer}.{name}", width, bias=True)
    add("audio_encoder.layer_norm", width, bias=True)
    for name in ("audio_adapter", *(f"deepstack_audio_merger_list.{number}" for number in range(_MERGERS))):
        add(f"{name}.gate_proj", width, width)
        add(f"{name}.up_proj", width, width)
        add(f"{name}.down_proj", HIDDEN, width)
    for number in range(_LAYERS):
        layer = f"language_model.layers.{number}"
        add(f"{layer}.self_attn.q_proj", 64, HIDDEN)
        add(f"{layer}.self_attn.k_proj", 32, HIDDEN)
        add(f"{layer}.self_attn.v_proj", 32, HIDDEN)
        add(f"{layer}.self_attn.o_proj", HIDDEN, 64)
        add(f"{layer}.mlp.gate_proj", _INNER, HIDDEN)
        add(f"{layer}.mlp.up_proj", _INNER, HIDDEN)
        add(f"{layer}.mlp.down_proj", HIDDEN, _INNER)
        for name, size in (("self_attn.q_norm", 32), ("self_attn.k_norm", 32),
                           ("input_layernorm", HIDDEN), ("post_attention_layernorm", HIDDEN)):  # fmt: skip
            add(f"{layer}.{name}", size)
    add("language_model.norm", HIDDEN)
    add("language_model.embed_tokens", VOCABULARY, HIDDEN)
    add("lm_head", VOCABULARY, HIDDEN)
    return shapes


MOSS_AUDIO = TinyModel(
    family="moss_audio", model_class="MossAudioModel", module="moss_audio",
    files={
        "config.json": _CONFIG_MOSS,
        "processor_config.json": {
            "audio_token_id": _IDS_MOSS["<|AUDIO|>"], "audio_start_id": _IDS_MOSS["<|audio_bos|>"],
            "audio_end_id": _IDS_MOSS["<|audio_eos|>"], "enable_time_marker": False,
            "mel_config": {"mel_dim": 128, "mel_sr": 16000, "mel_hop_length": 160, "mel_n_fft": 400},
        },
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>",
            "pad_token": "<|endoftext|>", "additional_special_tokens": list(_SPECIAL_MOSS[1:]),
            "model_max_length": 4096,
        },
        "generation_config.json": {
            "eos_token_id": _IDS_MOSS["<|im_end|>"], "pad_token_id": _IDS_MOSS["<|endoftext|>"],
        },
    },
    special=_SPECIAL_MOSS, image="<|audio_bos|><|AUDIO|><|audio_eos|>", video=None,
    payload="deepstack_audio_merger_list",
    scales={
        "audio_encoder.": 2.0, "audio_adapter": 2.0, "deepstack_audio_merger_list": 3.0, "embed_tokens": 4.0,
        "lm_head": 2.0, "language_model.layers.": 1.0, "v_proj": 2.0, "o_proj": 2.0,
    },
    spreads={}, renamed=None, main_features=True, driven="attribute", limits={"audio": 1}, medium="audio",
    weights=_weights_of_moss(),
    config_class={"model_type": "moss_audio", "text": "language_config", "text_type": "qwen3"},
)  # fmt: skip

MODELS: Mapping[str, TinyModel] = MappingProxyType(
    {
        model.family: model
        for model in (QWEN3_VL, GRANITE4_VISION, QWEN3_VL_MOE, QWEN3_OMNI_MOE_THINKER, MOSS_AUDIO)
    }
)
"""All of them by family, in the order in which they are played."""


def model_of(family: str) -> TinyModel:
    """Return the tiny model of a family; raise `UsageError` for one that no engine is started with."""
    if family not in MODELS:
        raise unknown_name("family of an engine", family, MODELS)
    return MODELS[family]
