"""Granite 4 Vision."""

from deepstack_harness.live_engine.models.tiny import PIXELS, TEMPLATE, VOCABULARY, TinyModel, token_ids

_SPECIAL = ("<|endoftext|>", "<|end_of_text|>", "<|pad|>", "<image>")
_IDS = token_ids(_SPECIAL)
_SIDE, _PATCH = 64, 16
_PINPOINTS = [[_SIDE, _SIDE], [_SIDE, 2 * _SIDE], [2 * _SIDE, _SIDE]]
_TEXT = {
    "model_type": "granite4_vision_text", "hidden_size": 64, "intermediate_size": 128,
    "num_hidden_layers": 8, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32,
    "vocab_size": VOCABULARY, "max_position_embeddings": 4096, "rms_norm_eps": 1e-6, "hidden_act": "silu",
    "rope_theta": 10000.0, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    "embedding_multiplier": 2.0, "logits_scaling": 2.0, "residual_multiplier": 0.5,
    "attention_multiplier": 32**-0.5, "tie_word_embeddings": False, "bos_token_id": _IDS["<|endoftext|>"],
    "eos_token_id": _IDS["<|end_of_text|>"], "pad_token_id": _IDS["<|pad|>"], "dtype": "float32",
}  # fmt: skip
_VISION = {
    "model_type": "siglip_vision_model", "hidden_size": 64, "intermediate_size": 128,
    "num_hidden_layers": 4, "num_attention_heads": 2, "image_size": _SIDE, "patch_size": _PATCH,
    "num_channels": 3, "vision_use_head": False,
}  # fmt: skip
_CONFIG = {
    "architectures": ["Granite4VisionForConditionalGeneration"], "model_type": "granite4_vision",
    "dtype": "float32", "torch_dtype": "float32", "image_token_index": _IDS["<image>"],
    "image_token_id": _IDS["<image>"], "tie_word_embeddings": False, "text_config": _TEXT,
    "vision_config": _VISION, "vision_feature_select_strategy": "full", "vision_feature_layer": -1,
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
_FILES = {
    "config.json": _CONFIG,
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
    "generation_config.json": {"eos_token_id": _IDS["<|end_of_text|>"], "pad_token_id": _IDS["<|pad|>"]},
    "chat_template.json": TEMPLATE,
}  # fmt: skip

GRANITE4_VISION = TinyModel(
    family="granite4_vision", model_class="Granite4VisionForConditionalGeneration",
    module="granite4_vision", files=_FILES, special=_SPECIAL, image="<image>", video=None,
    payload="out_linear", scales={"out_linear": 3.0},
    spreads={".query": 0.3, ".image_positions": 0.3, "image_newline": 0.5},
    # transformers 5.19 has no level `vision_model` in these names; vLLM 0.32 loads only names with it.
    renamed=("model.vision_tower.", "model.vision_tower.vision_model."),
    main_features=False, driven="forward", limits={"image": 4},
)  # fmt: skip
