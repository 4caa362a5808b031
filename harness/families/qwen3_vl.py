"""The text decoder of Qwen3-VL: level i of the payload is added after layer i.

Written after the description in the Qwen3-VL technical report and checked
against transformers' `Qwen3VLTextModel`, whose state dict it loads as it is.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from harness.families.layers import Attention, AttentionKind, InterleavedMRope, RMSNorm, SwiGLU, draw_weights
from harness.families.positions import mrope_positions


@dataclass(frozen=True)
class Qwen3VLConfig:
    hidden: int = 128
    mlp: int = 256
    layers: int = 4
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    sections: tuple[int, int, int] = (6, 5, 5)
    theta: float = 5e6
    eps: float = 1e-6
    attention: AttentionKind = "sdpa"


class DecoderLayer(nn.Module):
    def __init__(self, config: Qwen3VLConfig) -> None:
        super().__init__()
        c = config
        self.input_layernorm = RMSNorm(c.hidden, c.eps)
        self.self_attn = Attention(c.hidden, c.heads, c.kv_heads, c.head_dim, c.eps, c.attention)
        self.post_attention_layernorm = RMSNorm(c.hidden, c.eps)
        self.mlp = SwiGLU(c.hidden, c.mlp)

    def forward(self, x_NH: Tensor, cos_N1D: Tensor, sin_N1D: Tensor) -> Tensor:
        """(N, H) -> (N, H)."""
        x_NH = x_NH + self.self_attn(self.input_layernorm(x_NH), cos_N1D, sin_N1D)
        return x_NH + self.mlp(self.post_attention_layernorm(x_NH))


class Qwen3VLDecoder(nn.Module):
    def __init__(self, config: Qwen3VLConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(DecoderLayer(config) for _ in range(config.layers))
        self.norm = RMSNorm(config.hidden, config.eps)
        self.rotary_emb = InterleavedMRope(config.head_dim, config.sections, config.theta)
        self.register_load_state_dict_pre_hook(_drop_embeddings)

    def forward(self, hidden: Tensor, positions: Tensor, payload: tuple[Tensor, ...] | None) -> Tensor:
        """hidden (N, H), positions (3, N) int64, payload a tuple of (N, H) per level or None -> (N, H)."""
        cos_N1D, sin_N1D = self.rotary_emb(positions, hidden.dtype)
        x_NH = hidden
        for index, layer in enumerate(self.layers):
            x_NH = layer(x_NH, cos_N1D, sin_N1D)
            if payload is not None and index < len(payload):
                x_NH = x_NH + payload[index]
        out_NH: Tensor = self.norm(x_NH)
        return out_NH


def _drop_embeddings(_: nn.Module, state: dict[str, Any], prefix: str, *__: object) -> None:
    state.pop(f"{prefix}embed_tokens.weight", None)


class Qwen3VLFamily:
    name = "qwen3_vl"
    levels = 3

    def __init__(self, config: Qwen3VLConfig) -> None:
        self.config = config
        self.hidden = config.hidden

    def build(self, *, dtype: torch.dtype, device: torch.device, seed: int) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            decoder = Qwen3VLDecoder(self.config)
        draw_weights(decoder, seed)
        return decoder.to(dtype=dtype, device=device).eval().requires_grad_(requires_grad=False)

    def positions(self, tokens: int, device: torch.device) -> Tensor:
        return mrope_positions(tokens, device)


FAMILY = Qwen3VLFamily(Qwen3VLConfig())
