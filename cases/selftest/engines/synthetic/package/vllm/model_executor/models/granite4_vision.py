import torch

from vllm.sequence import IntermediateTensors, NoSuchBase


class Granite4VisionForConditionalGeneration(NoSuchBase):
    def __init__(self, *, vllm_config, prefix=""):
        super().__init__()
        config = vllm_config.model_config.hf_config
        rows, width = vllm_config.scheduler_config.max_num_batched_tokens, config.text_config.hidden_size
        self.layers = [layer + 9 for _, layer in config.deepstack_layer_map]
        self.layers += [layer + 9 for layer in config.spatial_target_layers]
        self.language_model = NoSuchModel(vllm_config)
        self.language_model.layers = self.layers
        self.kept = [torch.zeros(rows, width) for _ in self.layers]
        self.used = 0

    def embed_input_ids(self, input_ids, multimodal_embeddings=None, *, is_multimodal=None):
        inner = self.language_model.model
        text = inner.embed_input_ids(input_ids) * inner.config.embedding_multiplier
        if not multimodal_embeddings:
            self.used = 0
            return text
        packed = torch.cat(multimodal_embeddings).split(text.size(1), dim=-1)
        for rows, level in zip(self.kept, packed):
            rows[: text.size(0)].zero_()
            rows[: text.size(0)][is_multimodal] = level
        self.used = text.size(0)
        return text

    def forward(self, input_ids, positions, intermediate_tensors=None, inputs_embeds=None):
        shown = {f"ds_{layer}": rows[: len(inputs_embeds)] for layer, rows in zip(self.layers, self.kept)}
        hidden = self.language_model.model(
            input_ids=input_ids,
            positions=positions,
            inputs_embeds=inputs_embeds,
            deepstack_input_embeds=IntermediateTensors(shown),
        )
        for rows in self.kept:
            rows[: self.used].zero_()
        self.used = 0
        return hidden
