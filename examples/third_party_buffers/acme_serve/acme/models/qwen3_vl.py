"""The part of acme-serve that keeps the deepstack payload of a step.  It has a fault: `_clear`.

As in any engine, most of the model is somewhere else: the harness cuts out what touches the payload.
"""

import torch
from acme.text import TextModel
from acme.towers import Tower


class Qwen3VLForConditionalGeneration:
    def __init__(self, *, vllm_config, prefix=""):
        super().__init__()
        config = vllm_config.model_config.hf_config
        self.levels = len(config.vision_config.deepstack_visual_indexes)
        self.width = config.text_config.hidden_size
        self.capacity = vllm_config.scheduler_config.max_num_batched_tokens
        self.deepstack_input_embeds = [torch.zeros(self.capacity, self.width) for _ in range(self.levels)]
        self.visual = Tower(config)
        self.language_model = TextModel(vllm_config)

    def _check(self, num_tokens):
        if not 0 <= num_tokens <= self.capacity:
            raise ValueError(f"{num_tokens} tokens, room for {self.capacity}")

    def _get_deepstack_input_embeds(self, num_tokens):
        self._check(num_tokens)
        return {
            f"deepstack_input_embeds_{level}": rows[:num_tokens]
            for level, rows in enumerate(self.deepstack_input_embeds)
        }

    def _set_deepstack_input_embeds(self, deepstack_input_embeds):
        num_tokens = deepstack_input_embeds.size(1)
        self._check(num_tokens)
        if deepstack_input_embeds.size(2) != self.width:
            raise ValueError(f"rows of {deepstack_input_embeds.size(2)}, not of {self.width}")
        for rows, level in zip(self.deepstack_input_embeds, deepstack_input_embeds, strict=True):
            rows[:num_tokens].copy_(level)
            rows[num_tokens:].zero_()

    def _clear_deepstack_input_embeds(self, num_tokens):
        self._check(num_tokens)
        for rows in self.deepstack_input_embeds[1:]:  # the first level is left: that is the fault
            rows[:num_tokens].zero_()

    def forward(self, input_ids, positions, intermediate_tensors=None, inputs_embeds=None, **kwargs):
        payload = None
        if inputs_embeds is not None:
            payload = self._get_deepstack_input_embeds(inputs_embeds.size(0))
        hidden = self.language_model.model(
            input_ids, positions, None, inputs_embeds=inputs_embeds, deepstack_input_embeds=payload
        )
        if inputs_embeds is not None:
            self._clear_deepstack_input_embeds(inputs_embeds.size(0))
        return hidden
