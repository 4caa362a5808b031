"""A model file whose class has its rows in an object of another class, `Buffer`."""

import torch
from vllm.distributed import get_pp_group
from vllm.sequence import IntermediateTensors
from .interfaces import SupportsMultiModal


class Qwen3VLForConditionalGeneration(SupportsMultiModal):
    def __init__(self, *, vllm_config, prefix=""):
        super().__init__()
        config = vllm_config.model_config.hf_config
        self.width = config.text_config.hidden_size
        self.levels = len(config.vision_config.deepstack_visual_indexes)
        self.visual = Qwen3VisionTransformer(config.vision_config)
        self.deepstack_input_embeds = Buffer(
            vllm_config.scheduler_config.max_num_batched_tokens,
            self.width,
            self.levels,
            dtype=vllm_config.model_config.dtype,
            device=vllm_config.device_config.device,
        )
        self.language_model = Qwen3ForCausalLM(vllm_config)

    def embed_input_ids(self, input_ids, multimodal_embeddings=None, *, is_multimodal=None):
        if multimodal_embeddings:
            packed = torch.cat(tuple(multimodal_embeddings))
            rows = packed.new_zeros(len(input_ids), packed.size(1) - self.width)
            rows[is_multimodal] = packed[:, self.width :]
            self._set_deepstack_input_embeds(rows.unflatten(1, (self.levels, -1)).permute(1, 0, 2))
            multimodal_embeddings = [rows[:, : self.width] for rows in multimodal_embeddings]
        else:
            nothing = torch.zeros(self.levels, 0, self.width, device=input_ids.device)
            self._set_deepstack_input_embeds(nothing)
        return super().embed_input_ids(input_ids, multimodal_embeddings, is_multimodal=is_multimodal)

    def forward(self, input_ids, positions, intermediate_tensors=None, inputs_embeds=None, **kwargs):
        first = inputs_embeds is not None and get_pp_group().is_first_rank
        rows = self._get_deepstack_input_embeds(inputs_embeds.size(0)) if first else None
        hidden = self.language_model.model(
            input_ids, positions, None, inputs_embeds=inputs_embeds, deepstack_input_embeds=rows
        )
        if first:
            self._clear_deepstack_input_embeds(inputs_embeds.size(0))
        return hidden

    def _get_deepstack_input_embeds(self, num_tokens):
        levels = self.deepstack_input_embeds.get(num_tokens)
        if levels is None:
            return None
        return IntermediateTensors({f"deepstack_input_embeds_{i}": rows for i, rows in enumerate(levels)})

    def _set_deepstack_input_embeds(self, deepstack_input_embeds):
        self.deepstack_input_embeds.set(deepstack_input_embeds)

    def _clear_deepstack_input_embeds(self, num_tokens):
        self.deepstack_input_embeds.clear(num_tokens)

    def _resize_deepstack_input_embeds(self, num_tokens):
        self.deepstack_input_embeds.resize(num_tokens)
