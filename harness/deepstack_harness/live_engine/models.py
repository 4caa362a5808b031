"""Tiny models with random weights, as the files of a model folder: configuration, tokenizer, processor.

Sizes are the smallest that keep three payload levels, two attention heads and a vision tower; the vocabulary
is the 256 bytes and the special tokens, so that no tokenizer has to be downloaded.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from deepstack_harness.errors import unknown_name

BYTES = 256
"""Tokens for single bytes; the special tokens follow them."""
VOCABULARY = 320


@dataclass(frozen=True)
class TinyModel:
    """One family as an engine loads it.

    `files` are JSON files of the folder.  `model_class` is the class of transformers, and of the engine, in
    its `module`.  `image` and `video` are the placeholders in a prompt, None where the family has none.
    Weights are normal random numbers: parameters whose name contains a key of `scales` are multiplied,
    those with a key of `spreads` get that standard deviation.  `payload` names the parameters that make the
    deepstack payload: with them at zero the model runs without.  `renamed` turns names of transformers
    into those of released checkpoints.  With `main_features` a row of visual embeddings starts with what
    replaces the token embedding, and the levels follow.
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
    logprobs: int = VOCABULARY

    def job(self) -> dict[str, Any]:
        """Return what the child needs to make the folder."""
        return {
            "files": dict(self.files), "special": self.special, "model_class": self.model_class,
            "payload": self.payload, "scales": dict(self.scales), "spreads": dict(self.spreads),
            "renamed": self.renamed,
        }  # fmt: skip


def model_of(family: str) -> TinyModel:
    """Return the tiny model of a family; raise `UsageError` for one that no engine is started with."""
    if family not in MODELS:
        raise unknown_name("family of an engine", family, MODELS)
    return MODELS[family]


def _ids(special: tuple[str, ...]) -> dict[str, int]:
    return {name: BYTES + number for number, name in enumerate(special)}


_TEMPLATE = {"chat_template": "{% for m in messages %}{{m['content']}}{% endfor %}"}
_PIXELS = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}


def _qwen3_vl() -> TinyModel:
    special = (
        "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>",
        "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>",
    )  # fmt: skip
    ids = _ids(special)
    patches = {**_PIXELS, "patch_size": 16, "temporal_patch_size": 2, "merge_size": 2,
               "size": {"shortest_edge": 1024, "longest_edge": 65536},
               "processor_class": "Qwen3VLProcessor"}  # fmt: skip
    text = {
        "model_type": "qwen3_vl_text", "dtype": "float32", "hidden_size": 64, "intermediate_size": 128,
        "num_hidden_layers": 4, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32,
        "hidden_act": "silu", "rms_norm_eps": 1e-6, "vocab_size": VOCABULARY, "max_position_embeddings": 4096,
        "rope_theta": 10000.0, "attention_bias": False, "bos_token_id": ids["<|endoftext|>"],
        "eos_token_id": ids["<|im_end|>"], "tie_word_embeddings": False, "use_cache": True,
        "rope_scaling": {
            "rope_type": "default", "type": "default", "mrope_interleaved": True, "mrope_section": [6, 5, 5],
        },
    }  # fmt: skip
    vision = {
        "model_type": "qwen3_vl", "depth": 4, "hidden_size": 64, "intermediate_size": 128, "num_heads": 2,
        "in_channels": 3, "patch_size": 16, "spatial_merge_size": 2, "temporal_patch_size": 2,
        "out_hidden_size": 64, "num_position_embeddings": 64, "deepstack_visual_indexes": [0, 1, 2],
        "hidden_act": "gelu_pytorch_tanh",
    }  # fmt: skip
    config = {
        "architectures": ["Qwen3VLForConditionalGeneration"], "model_type": "qwen3_vl", "dtype": "float32",
        "torch_dtype": "float32", "tie_word_embeddings": False, "image_token_id": ids["<|image_pad|>"],
        "video_token_id": ids["<|video_pad|>"], "vision_start_token_id": ids["<|vision_start|>"],
        "vision_end_token_id": ids["<|vision_end|>"], "text_config": text, "vision_config": vision,
    }  # fmt: skip
    tokenizer = {
        "tokenizer_class": "Qwen2Tokenizer", "model_max_length": 4096, "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>", "unk_token": None, "bos_token": None, "add_prefix_space": False,
        "clean_up_tokenization_spaces": False, "errors": "replace", "split_special_tokens": False,
        "additional_special_tokens": special[1:],
        "added_tokens_decoder": {
            str(number): {"content": name, "lstrip": False, "normalized": False, "rstrip": False,
                          "single_word": False, "special": True}
            for name, number in ids.items()
        },
    }  # fmt: skip
    files = {
        "config.json": config,
        "tokenizer_config.json": tokenizer,
        "preprocessor_config.json": {**patches, "image_processor_type": "Qwen2VLImageProcessorFast"},
        "video_preprocessor_config.json": {**patches, "video_processor_type": "Qwen3VLVideoProcessor"},
        "generation_config.json": {"eos_token_id": ids["<|im_end|>"], "pad_token_id": ids["<|endoftext|>"]},
        "chat_template.json": _TEMPLATE,
    }
    return TinyModel(
        family="qwen3_vl", model_class="Qwen3VLForConditionalGeneration", module="qwen3_vl", files=files,
        special=special, image="<|vision_start|><|image_pad|><|vision_end|>",
        video="<|vision_start|><|video_pad|><|vision_end|>", payload="deepstack_merger_list",
        scales={"deepstack_merger_list": 4.0}, spreads={}, renamed=None, main_features=True, driven="methods",
    )  # fmt: skip


def _granite4_vision() -> TinyModel:
    special = ("<|endoftext|>", "<|end_of_text|>", "<|pad|>", "<image>")
    ids = _ids(special)
    side, patch = 64, 16
    pinpoints = [[side, side], [side, 2 * side], [2 * side, side]]
    text = {
        "model_type": "granite4_vision_text", "hidden_size": 64, "intermediate_size": 128,
        "num_hidden_layers": 8, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32,
        "vocab_size": VOCABULARY, "max_position_embeddings": 4096, "rms_norm_eps": 1e-6, "hidden_act": "silu",
        "rope_theta": 10000.0, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "embedding_multiplier": 2.0, "logits_scaling": 2.0, "residual_multiplier": 0.5,
        "attention_multiplier": 32**-0.5, "tie_word_embeddings": False, "bos_token_id": ids["<|endoftext|>"],
        "eos_token_id": ids["<|end_of_text|>"], "pad_token_id": ids["<|pad|>"], "dtype": "float32",
    }  # fmt: skip
    vision = {
        "model_type": "siglip_vision_model", "hidden_size": 64, "intermediate_size": 128,
        "num_hidden_layers": 4, "num_attention_heads": 2, "image_size": side, "patch_size": patch,
        "num_channels": 3, "vision_use_head": False,
    }  # fmt: skip
    config = {
        "architectures": ["Granite4VisionForConditionalGeneration"], "model_type": "granite4_vision",
        "dtype": "float32", "torch_dtype": "float32", "image_token_index": ids["<image>"],
        "image_token_id": ids["<image>"], "tie_word_embeddings": False, "text_config": text,
        "vision_config": vision, "vision_feature_select_strategy": "full", "vision_feature_layer": -1,
        "image_grid_pinpoints": pinpoints, "image_seq_length": 4, "downsample_rate": "1/2",
        "deepstack_layer_map": [[-4, 0], [-3, 1], [-2, 2]], "spatial_vision_layer": -1,
        "spatial_target_layers": [3, 4, 5, 6], "projector_dropout": 0.0,
    }  # fmt: skip
    pixels = {
        **_PIXELS, "image_processor_type": "LlavaNextImageProcessor", "size": {"height": side, "width": side},
        "crop_size": {"height": side, "width": side}, "do_center_crop": True, "do_resize": True,
        "do_rescale": True, "rescale_factor": 1 / 255, "do_normalize": True, "do_pad": True,
        "do_convert_rgb": True, "resample": 3, "image_grid_pinpoints": pinpoints,
        "processor_class": "Granite4VisionProcessor",
    }  # fmt: skip
    files = {
        "config.json": config,
        "preprocessor_config.json": pixels,
        "processor_config.json": {
            "processor_class": "Granite4VisionProcessor", "patch_size": patch,
            "vision_feature_select_strategy": "full", "num_additional_image_tokens": 0,
            "downsample_rate": "1/2", "image_token": "<image>",
        },
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|end_of_text|>",
            "pad_token": "<|pad|>", "additional_special_tokens": ["<image>"], "model_max_length": 4096,
        },
        "generation_config.json": {"eos_token_id": ids["<|end_of_text|>"], "pad_token_id": ids["<|pad|>"]},
        "chat_template.json": _TEMPLATE,
    }  # fmt: skip
    return TinyModel(
        family="granite4_vision", model_class="Granite4VisionForConditionalGeneration",
        module="granite4_vision", files=files, special=special, image="<image>", video=None,
        payload="out_linear", scales={"out_linear": 3.0},
        spreads={".query": 0.3, ".image_positions": 0.3, "image_newline": 0.5},
        # transformers 5.19 has no level `vision_model` in these names; vLLM 0.32 loads only names with it.
        renamed=("model.vision_tower.", "model.vision_tower.vision_model."),
        main_features=False, driven="forward",
    )  # fmt: skip


MODELS: Mapping[str, TinyModel] = MappingProxyType(
    {model.family: model for model in (_qwen3_vl(), _granite4_vision())}
)
"""The families that an engine is started with, in the order in which they are played."""
