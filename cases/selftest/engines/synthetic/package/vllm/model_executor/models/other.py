"""Classes that live from another file's; deepstack."""

import torch
from vllm.model_executor.models.qwen3_vl import Qwen3VLForConditionalGeneration


class Renamed(Qwen3VLForConditionalGeneration):
    weights = "other"


class Roomier(Qwen3VLForConditionalGeneration):
    def __init__(self, *, vllm_config, prefix=""):
        super(Qwen3VLForConditionalGeneration, self).__init__()
        config = vllm_config.model_config.hf_config
        self.levels = len(config.vision_config.deepstack_visual_indexes)
        rows = 2 * vllm_config.scheduler_config.max_num_batched_tokens
        hidden = config.text_config.hidden_size
        self.deepstack_input_embeds = [torch.zeros(rows, hidden) for _ in range(self.levels)]
        self.filled = 0


class Calling(Qwen3VLForConditionalGeneration):
    def __init__(self, *, vllm_config, prefix=""):
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        self.more = NoSuchThing()


class Bare(Qwen3VLForConditionalGeneration):
    def __init__(self, *, vllm_config, prefix=""):
        super(Qwen3VLForConditionalGeneration, self).__init__()
        self.levels = 3
        self.filled = 0


class Methodless:
    def forward(self, ids):
        return self.language_model(ids, deepstack_input_embeds=self.rows)
