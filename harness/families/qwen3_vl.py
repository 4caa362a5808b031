"""The text decoder of Qwen3-VL: level i of the payload is added after layer i.

Held against transformers' `Qwen3VLTextModel`, whose state dict it loads as it is.
Shape letters are those of `harness.families.layers`.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from harness.errors import UsageError
from harness.families.layers import (
    ATTENTION,
    Attention,
    AttentionKind,
    InterleavedMRope,
    RMSNorm,
    SwiGLU,
    draw_weights,
)
from harness.families.positions import mrope_positions

if TYPE_CHECKING:
    from harness.protocols import Family


@dataclass(frozen=True)
class Qwen3VLConfig:
    """Sizes of a tiny decoder; rotary base and norm epsilon as in the released models.

    `sections` are rotary lanes per axis (time, height, width), `levels` the payload's.
    Raises `UsageError` for sizes that do not go together.
    """

    hidden: int = 128
    mlp: int = 256
    layers: int = 4
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    sections: tuple[int, int, int] = (6, 5, 5)
    theta: float = 5e6
    eps: float = 1e-6
    levels: int = 3
    attention: AttentionKind = "sdpa"

    def __post_init__(self) -> None:
        if self.attention not in ATTENTION:
            raise UsageError(f"unknown attention '{self.attention}'; known are {', '.join(ATTENTION)}")
        if self.heads % self.kv_heads:
            raise UsageError(f"{self.heads} heads are no multiple of {self.kv_heads} key/value heads")
        if 2 * sum(self.sections) != self.head_dim:
            raise UsageError(f"sections {self.sections} must add up to half of head_dim {self.head_dim}")
        if self.levels > self.layers:
            raise UsageError(f"{self.levels} levels need as many layers, not {self.layers}")


class DecoderLayer(nn.Module):
    """Attention and feed-forward, each behind a norm and added to what came in."""

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
        out_NH: Tensor = x_NH + self.mlp(self.post_attention_layernorm(x_NH))
        return out_NH


class Qwen3VLDecoder(nn.Module):
    """A `harness.protocols.Decoder`.

    `load_state_dict` takes a `Qwen3VLTextModel`'s as it is and stays strict; of
    its entries only `embed_tokens.weight` is left out: this decoder starts from
    embeddings.
    """

    def __init__(self, config: Qwen3VLConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(DecoderLayer(config) for _ in range(config.layers))
        self.norm = RMSNorm(config.hidden, config.eps)
        self.rotary_emb = InterleavedMRope(config.head_dim, config.sections, config.theta)
        self.register_load_state_dict_pre_hook(_drop_embeddings)  # type: ignore[no-untyped-call]

    def forward(self, hidden: Tensor, positions: Tensor, payload: tuple[Tensor, ...] | None) -> Tensor:
        """Hidden (N, H), positions (3, N) int64, payload one (N, H) per level or None -> (N, H).

        As many levels are added as the payload has, whatever the family says; as in
        the engine nothing compares their rows with N but the addition itself.
        """
        cos_N1D, sin_N1D = self.rotary_emb(positions, hidden.dtype)
        x_NH = hidden
        for index, layer in enumerate(self.layers):
            x_NH = layer(x_NH, cos_N1D, sin_N1D)
            if payload is not None and index < len(payload):
                x_NH = x_NH + payload[index]
        out_NH: Tensor = self.norm(x_NH)
        return out_NH


def _drop_embeddings(_module: nn.Module, state: dict[str, Any], prefix: str, *_: object) -> None:
    state.pop(f"{prefix}embed_tokens.weight", None)


class Qwen3VLFamily:
    """A `harness.protocols.Family`: decoders of one config, weights drawn from a seed."""

    name = "qwen3_vl"

    def __init__(self, config: Qwen3VLConfig) -> None:
        self.config = config
        self.hidden = config.hidden
        self.levels = config.levels

    def build(self, *, dtype: torch.dtype, device: torch.device, seed: int) -> nn.Module:
        """Make a decoder in eval mode without gradients; equal seeds give equal weights everywhere."""
        # Linear layers fill themselves from the global generator first: not the caller's.
        with torch.random.fork_rng(devices=[]):
            decoder = Qwen3VLDecoder(self.config)
        draw_weights(decoder, seed)
        return decoder.to(dtype=dtype, device=device).eval().requires_grad_(requires_grad=False)

    def positions(self, tokens: int, device: torch.device) -> Tensor:
        """Positions (3, tokens) of a text with images."""
        return mrope_positions(tokens, device)


FAMILY: "Family" = Qwen3VLFamily(Qwen3VLConfig())
