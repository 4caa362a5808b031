"""A model file."""

import itertools

import torch
from torch import nn
from nowhere_at_all import AnotherType, NoSuchBase, NoSuchType
from vllm.distributed import rank_of_everything
from vllm.sequence import IntermediateTensors

FIRST_LEVEL = 0


def empty_levels(levels, rows, width):
    return [torch.zeros(rows, width) for _ in range(levels)]


class Qwen3VLForConditionalGeneration(NoSuchBase):
    def __init__(self, *, vllm_config: NoSuchType, prefix: str = "model"):
        super().__init__()
        config: AnotherType = vllm_config.model_config.hf_config
        self.config = config
        self.rank = rank_of_everything(vllm_config.parallel_config)
        if self.rank:
            raise RuntimeError("the rest of the model was built")
        self.levels = len(config.vision_config.deepstack_visual_indexes)
        with self._mark_tower_model(vllm_config, {"image"}):
            self.visual = NoSuchTower(config.vision_config)
            if self.levels:
                rows = vllm_config.scheduler_config.max_num_batched_tokens
                self.deepstack_input_embeds = empty_levels(self.levels, rows, config.text_config.hidden_size)
                self.filled = 0
        self.language_model = NoSuchModel(vllm_config, self.visual)

    def _get_deepstack_input_embeds(self, num_tokens: int) -> NoSuchType:
        if self.filled == 0:
            return None
        return IntermediateTensors(
            {
                f"deepstack_input_embeds_{level}": self._rows(level, num_tokens)
                for level in itertools.islice(itertools.count(FIRST_LEVEL), self.levels)
            }
        )

    def _rows(self, level, count):
        return self.deepstack_input_embeds[level][:count]

    def _set_deepstack_input_embeds(self, deepstack_input_embeds):
        self.filled = deepstack_input_embeds.size(1)
        if self.filled > self.deepstack_input_embeds[0].size(0):
            raise ValueError("that is too much")
        for ours, theirs in zip(self.deepstack_input_embeds, deepstack_input_embeds):
            ours[: self.filled].copy_(theirs)

    def _clear_deepstack_input_embeds(self, num_tokens):
        for rows in self.deepstack_input_embeds:
            rows[:num_tokens].zero_()
        self.filled = 0

    def forward(self, x):
        return self.language_model(x, rank_of_everything(x))


class HandsOn(NoSuchBase):
    def forward(self, ids, positions, inputs_embeds=None):
        payload = self._get_deepstack_input_embeds(inputs_embeds.size(0))
        out = self.language_model.model(ids, positions, deepstack_input_embeds=payload)
        self._clear_deepstack_input_embeds(inputs_embeds.size(0))
        return out


class InnerModel:
    def forward(self, ids, deepstack_input_embeds=None):
        return self.layers(ids, deepstack_input_embeds=deepstack_input_embeds)
