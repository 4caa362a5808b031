"""The thinker of Qwen3-Omni: the part that reads images and answers in text."""

from deepstack_harness.live_engine.models import qwen
from deepstack_harness.live_engine.models.tiny import ExpertLayout, TinyModel, token_ids

_SPECIAL = (*qwen.SPECIAL, "<|audio_start|>", "<|audio_end|>", "<|audio_pad|>")
_IDS = token_ids(_SPECIAL)
# No request has audio; the tower is the smallest that both transformers and vLLM build.
_AUDIO = {
    "model_type": "qwen3_omni_moe_audio_encoder", "d_model": 32, "encoder_layers": 1,
    "encoder_attention_heads": 2, "encoder_ffn_dim": 64, "num_mel_bins": 128, "output_dim": qwen.HIDDEN,
    "downsample_hidden_size": 16, "n_window": 50, "n_window_infer": 800, "max_source_positions": 1500,
}  # fmt: skip
# 8 x 8 positions of patches of 16 pixels; transformers takes them from `num_position_embeddings`.
_VISION = {
    "model_type": "qwen3_omni_moe_vision_encoder",
    **qwen.VISION,
    "image_size": 128,
    "apply_vit_abs_pos_embed": True,
}
_THINKER = {
    "model_type": "qwen3_omni_moe_thinker", "dtype": "float32", "torch_dtype": "float32",
    **qwen.visual_ids(_SPECIAL), "audio_token_id": _IDS["<|audio_pad|>"],
    "audio_start_token_id": _IDS["<|audio_start|>"], "audio_end_token_id": _IDS["<|audio_end|>"],
    "audio_config": _AUDIO, "vision_config": _VISION,
    "text_config": {"model_type": "qwen3_omni_moe_text", **qwen.TEXT, **qwen.MIXTURE},
    "tie_word_embeddings": False, "position_id_per_seconds": 13,
}  # fmt: skip
_CONFIG = {
    "architectures": ["Qwen3OmniMoeForConditionalGeneration"], "model_type": "qwen3_omni_moe",
    "dtype": "float32", "torch_dtype": "float32", "enable_audio_output": False, "thinker_config": _THINKER,
}  # fmt: skip
_FILES = qwen.folder_files(_CONFIG, "Qwen3OmniMoeProcessor", "Qwen2VLVideoProcessor", _SPECIAL)
# One file for both, as in released folders.
_FILES["preprocessor_config.json"] |= {
    "feature_extractor_type": "WhisperFeatureExtractor", "feature_size": 128, "sampling_rate": 16000,
    "hop_length": 160, "n_fft": 400, "chunk_length": 30, "padding_value": 0.0, "return_attention_mask": True,
}  # fmt: skip
_FILES["tokenizer_config.json"]["extra_special_tokens"] = {
    "image_token": "<|image_pad|>", "video_token": "<|video_pad|>", "audio_token": "<|audio_pad|>",
    "vision_bos_token": "<|vision_start|>", "vision_eos_token": "<|vision_end|>",
    "audio_bos_token": "<|audio_start|>", "audio_eos_token": "<|audio_end|>",
}  # fmt: skip

QWEN3_OMNI_MOE_THINKER = TinyModel(
    family="qwen3_omni_moe_thinker", model_class="Qwen3OmniMoeThinkerForConditionalGeneration",
    module="qwen3_omni_moe_thinker", files=_FILES, special=_SPECIAL, image=qwen.IMAGE, video=None,
    payload="merger_list", scales={"merger_list": 4.0}, spreads={}, renamed=None, main_features=True,
    driven="methods", limits={"image": 4, "video": 0, "audio": 0}, nested="thinker_config",
    experts=ExpertLayout.APART,
)  # fmt: skip
