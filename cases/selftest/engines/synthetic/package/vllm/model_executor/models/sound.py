import nowhere_at_all as nw
import torch
from elsewhere import Box, ForeignConfig, Kind, traced
from torch import nn

from vllm.compilation.decorators import support_torch_compile
from vllm.model_executor.layers.linear import NoSuchLinear
from vllm.sequence import IntermediateTensors

from .base import BaseDecoder


class SoundConfig(ForeignConfig):
    """Cannot be defined without the package of its base."""


class Projection(nn.Module):
    def __init__(self, config: SoundConfig):
        super().__init__()
        self.down = NoSuchLinear(config.wide)


@support_torch_compile(dynamic_arg_dims={"x": 0, "positions": -1, "side_rows": 0})
class SoundDecoder(BaseDecoder):
    def forward(self, x: torch.Tensor, positions: torch.Tensor, side_rows: Box | None = None) -> torch.Tensor:
        hidden, residual = x, None
        for number, layer in enumerate(self.layers[self.first_layer : self.last_layer]):
            hidden, residual = layer(positions, hidden, residual)
            if side_rows is not None and number < LEVELS_IN(side_rows):
                hidden = hidden + ROWS_OF(side_rows, number)
            self.watch(hidden)
        hidden, _ = self.last_norm(hidden, residual)
        return hidden


class SoundModel(nn.Module):
    def __init__(self, *, vllm_config: Box, prefix: str = ""):
        super().__init__()
        config = vllm_config.model_config.hf_config
        if not isinstance(config, SoundConfig):
            config = SoundConfig(config)
        self.projections = nn.ModuleList([Projection(config) for _ in range(len(config.sound_layers))])
        self.side_store: Box | None = EMPTY
        self.decoder = SoundCausal(vllm_config)
        self.language_model = self.decoder

    @traced(Kind.EMBED)
    def embed_input_ids(
        self,
        input_ids: nw.Tensor,
        multimodal_embeddings: Box | None = None,
        *,
        is_multimodal: torch.Tensor | None = None,
        kind: Kind | None = None,
    ) -> nw.Tensor:
        text = self.language_model.embed_input_ids(input_ids)
        RESET
        if not multimodal_embeddings:
            return text
        width = text.shape[-1]
        levels = [
            torch.cat([rows[:, width * (i + 1) : width * (i + 2)] for rows in multimodal_embeddings])
            for i in range(len(self.projections))
        ]
        self.keep(text, levels, is_multimodal)
        return text

    def keep(self, text: Box, levels: Box, where: Box) -> None:
        spread = []
        for level in levels:
            rows = text.new_zeros(text.shape)
            rows[where] = level
            spread.append(rows)
        STORE

    def forward(self, input_ids, positions, intermediate_tensors=None, inputs_embeds=None, **kwargs):
        side = TAKE
        out = self.language_model(inputs_embeds, positions, side_rows=side)
        DONE
        return out


class SoundCausal(nn.Module):
    def __init__(self, vllm_config):
        super().__init__()
        self.model = SoundDecoder(vllm_config=vllm_config)

    def forward(self, x, positions, side_rows=None):
        return self.model(x, positions, side_rows=side_rows)
