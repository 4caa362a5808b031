import torch

from vllm.distributed import get_pp_group
from vllm.sequence import IntermediateTensors

from .interfaces import SupportsNothing
from .utils import put_rows as place, synchronise


class Qwen3VLForConditionalGeneration(SupportsNothing):
    def __init__(self, *, vllm_config, prefix="model"):
        super().__init__()
        config = vllm_config.model_config.hf_config
        self.levels = len(config.vision_config.deepstack_visual_indexes)
        self.width = config.text_config.hidden_size
        rows = vllm_config.scheduler_config.max_num_batched_tokens
        self.deepstack_input_embeds = [torch.zeros(rows, self.width) for _ in range(self.levels)]
        self.filled = 0
        self.visual = NoSuchTower(config)
        self.language_model = NoSuchModel(vllm_config)

    def embed_input_ids(self, input_ids, multimodal_embeddings=None, *, is_multimodal=None):
        text = self._embed_text_input_ids(
            input_ids, self.language_model.embed_input_ids, is_multimodal=is_multimodal
        )
        if not multimodal_embeddings:
            return text
        main = [rows[:, : self.width] for rows in multimodal_embeddings]
        self._set_deepstack_input_embeds(torch.cat(tuple(multimodal_embeddings))[:, self.width :])
        return super().embed_input_ids(input_ids, multimodal_embeddings=main, is_multimodal=is_multimodal)

    def forward(self, input_ids, positions, intermediate_tensors=None, inputs_embeds=None, **kwargs):
        first = inputs_embeds is not None and get_pp_group().is_first_rank
        rows = self._get_deepstack_input_embeds(inputs_embeds.size(0)) if first else None
        hidden = self.language_model.model(
            input_ids, positions, None, inputs_embeds=inputs_embeds, deepstack_input_embeds=rows
        )
        if first:
            self._clear_deepstack_input_embeds(inputs_embeds.size(0))
        return hidden

    def _get_deepstack_input_embeds(self, count):
        return IntermediateTensors(
            {f"deepstack_input_embeds_{i}": x[:count] for i, x in enumerate(self.deepstack_input_embeds)}
        )

    def _set_deepstack_input_embeds(self, packed):
        self.filled = packed.size(0)
        if self.filled > self.deepstack_input_embeds[0].size(0):
            self.deepstack_input_embeds = [torch.zeros(self.filled, self.width) for _ in range(self.levels)]
        for rows, level in zip(self.deepstack_input_embeds, packed.split(self.width, dim=1)):
            place(rows, [level], torch.arange(self.filled))

    def _clear_deepstack_input_embeds(self, count):
        for rows in self.deepstack_input_embeds:
            rows[:count].zero_()
        self.filled = 0
