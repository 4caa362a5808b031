"""Parts that the families of Qwen3 share: special tokens, decoder, vision tower, tokenizer, processor."""

from collections.abc import Mapping
from typing import Any

from deepstack_harness.live_engine.models.tiny import (
    PIXELS,
    TEMPLATE,
    VOCABULARY,
    ExpertLayout,
    TinyModel,
    token_ids,
)

HIDDEN = 64
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
    return {
        "config.json": config,
        "tokenizer_config.json": _tokenizer(special),
        "preprocessor_config.json": {**patches, "image_processor_type": "Qwen2VLImageProcessorFast"},
        "video_preprocessor_config.json": {**patches, "video_processor_type": video_processor},
        "generation_config.json": {"eos_token_id": ids["<|im_end|>"], "pad_token_id": ids["<|endoftext|>"]},
        "chat_template.json": TEMPLATE,
    }


def _tokenizer(special: tuple[str, ...]) -> dict[str, Any]:
    return {
        "tokenizer_class": "Qwen2Tokenizer", "model_max_length": 4096, "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>", "unk_token": None, "bos_token": None, "add_prefix_space": False,
        "clean_up_tokenization_spaces": False, "errors": "replace", "split_special_tokens": False,
        "additional_special_tokens": special[1:],
        "added_tokens_decoder": {
            str(number): {"content": name, "lstrip": False, "normalized": False, "rstrip": False,
                          "single_word": False, "special": True}
            for name, number in token_ids(special).items()
        },
    }  # fmt: skip
