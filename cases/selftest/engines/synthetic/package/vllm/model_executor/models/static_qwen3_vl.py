import torch
from vllm.distributed import get_pp_group
from vllm.sequence import IntermediateTensors, NoSuchBase


class Qwen3VLForConditionalGeneration(NoSuchBase):
    def __init__(self, *, vllm_config, prefix=""):
        super().__init__()
        config = vllm_config.model_config.hf_config
        self.config = config
        vision = config.vision_config
        self.use_deepstack = True
        self.visual_dim = vision.out_hidden_size
        self.deepstack_num_level = len(vision.deepstack_visual_indexes)
        self.tower = NoSuchTower(vllm_config)
        rows = vllm_config.scheduler_config.max_num_batched_tokens
        self.deepstack_input_embeds = [
            torch.zeros(rows, self.visual_dim) for _ in range(self.deepstack_num_level)
        ]
        self.language_model = NoSuchModel(vllm_config)

    def _get_deepstack_input_embeds(self, num_tokens):
        levels = enumerate(self.deepstack_input_embeds)
        named = {f"deepstack_input_embeds_{i}": rows[:num_tokens] for i, rows in levels}
        return IntermediateTensors(named)

    def _set_deepstack_input_embeds(self, deepstack_input_embeds):
        for ours, theirs in zip(self.deepstack_input_embeds, deepstack_input_embeds):
            ours.zero_()
            ours[: theirs.size(0)].copy_(theirs)

    def _clear_deepstack_input_embeds(self, num_tokens):
        for rows in self.deepstack_input_embeds:
            rows.zero_()

    def forward(self, input_ids, positions, intermediate_tensors=None, inputs_embeds=None):
        payload = None
        if inputs_embeds is not None and get_pp_group().is_first_rank:
            payload = self._get_deepstack_input_embeds(inputs_embeds.size(0))
        out = self.language_model.model(input_ids, positions, deepstack_input_embeds=payload)
        if inputs_embeds is not None:
            self._clear_deepstack_input_embeds(inputs_embeds.size(0))
        return out

    def embed_input_ids(self, input_ids, multimodal_embeddings=None, *, is_multimodal=None):
        hidden = self.visual_dim
        main = [rows[:, :hidden] for rows in multimodal_embeddings]
        out = super().embed_input_ids(input_ids, multimodal_embeddings=main, is_multimodal=is_multimodal)
        wide = out.new_zeros(out.size(0), self.deepstack_num_level * hidden)
        for rows in multimodal_embeddings:
            wide[is_multimodal] = rows[:, hidden:]
        self._set_deepstack_input_embeds(wide.view(out.size(0), -1, hidden).permute(1, 0, 2))
        return out
