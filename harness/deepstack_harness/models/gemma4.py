"""The text decoder of Gemma 4: each layer multiplies its level of the payload by a gate of its own.

The payload is `per_layer_inputs`: for every token of every step, an image's included, one row per layer,
looked up by token id. Before the first layer it is mixed with a projection of the token embeddings; layer i
then multiplies level i by a gate, and adds the projected product. Gemma 3n does the same.

Tests compare the decoder with transformers' `Gemma4TextModel`, whose state dict it loads unchanged. In
transformers the embedding multiplies its rows by sqrt(hidden), so that `hidden` is multiplied already here.
Three things of released models are left out, because no payload depends on them: layers that reuse the keys
and values of earlier ones, the window of the sliding layers (512 tokens, more than the traces that run a
decoder have), and another head size in the full layers.
Shape letters are those of `deepstack_harness.models.layers`, and I layers, W width of the payload.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  (its usual name)
from typing_extensions import override

from deepstack_harness.contract.rules import PayloadKind
from deepstack_harness.errors import UsageError
from deepstack_harness.models.family import TinyFamily, drop_embeddings
from deepstack_harness.models.layers import (
    Attention,
    DecoderConfig,
    RMSNorm,
    Rope,
    SwiGLU,
    at_least_fp32,
    counted_positions,
)

if TYPE_CHECKING:
    from deepstack_harness.contract.protocols import Family


@dataclass(frozen=True)
class Gemma4Config(DecoderConfig):
    """Sizes with the rotary bases and norm epsilon of the released models.

    `width` is the number of columns of a level (`hidden_size_per_layer_input`: 256 in E2B and E4B), whose
    number is that of the layers. Every `pattern`-th layer is a full one, whose rotary base is
    `full_theta`, and which turns only the share `partial_rotary_factor` of the lanes; the others are
    sliding ones.
    Heads are small, because logits are scaled by 1: with 32 lanes of random weights they are so sharp that
    rounding moves outputs by 1e-5.
    """

    heads: int = 8
    kv_heads: int = 4
    head_dim: int = 8
    width: int = 32
    pattern: int = 2
    full_theta: float = 1e6
    partial_rotary_factor: float = 0.25

    def __post_init__(self) -> None:
        """Check the sizes; raises `UsageError` for those that do not go together."""
        super().__post_init__()
        if self.width < 1 or self.pattern < 1:
            raise UsageError(f"width {self.width} and pattern {self.pattern} must be 1 or more")

    @property
    @override
    def levels(self) -> int:
        return self.layers

    def is_full(self, layer: int) -> bool:
        """Return whether `layer` (from 0) attends to all tokens; transformers wants the last one to."""
        return (layer + 1) % self.pattern == 0 or layer == self.layers - 1


class PartialRope(Rope):
    """Rotary angles of a full layer: only the first `partial_rotary_factor` (0 .. 1) of the lanes turns."""

    def __init__(self, head_dim: int, theta: float, partial_rotary_factor: float) -> None:
        super().__init__(head_dim, theta)
        self.lanes = int(partial_rotary_factor * head_dim // 2)

    @override
    def forward(self, positions_3N: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Turn positions (3, N) int64 into cos and sin, each (N, 1, D) in `dtype`."""
        cos_N1D, sin_N1D = super().forward(positions_3N, at_least_fp32(dtype))
        lane_D = torch.arange(self.head_dim, device=positions_3N.device) % (self.head_dim // 2)
        still_D = lane_D >= self.lanes
        return cos_N1D.masked_fill(still_D, 1).to(dtype), sin_N1D.masked_fill(still_D, 0).to(dtype)


class Gemma4Attention(Attention):
    """Causal self-attention whose queries, keys and values are normed per head, and whose scale is 1."""

    def __init__(self, config: Gemma4Config) -> None:
        super().__init__(config, scale=1.0, normed=True)
        self.eps = config.eps

    @override
    def norm_values(self, v_NKD: Tensor) -> Tensor:
        """Scale each head of (N, K, D) to a mean square of 1, in its dtype."""
        wide_NKD = v_NKD.to(at_least_fp32(v_NKD.dtype))
        scale_NK1 = torch.rsqrt(wide_NKD.square().mean(-1, keepdim=True) + self.eps)
        return (wide_NKD * scale_NK1).to(v_NKD.dtype)


class GatedGelu(SwiGLU):
    """Gated feed-forward layer whose gate is a GELU in its tanh form."""

    @override
    def gate(self, x_NM: Tensor) -> Tensor:
        return F.gelu(x_NM, approximate="tanh")


class Gemma4DecoderLayer(nn.Module):
    """Attention, feed-forward, and the level of the payload, each normed and added to its input."""

    def __init__(self, config: Gemma4Config) -> None:
        super().__init__()
        c = config
        self.input_layernorm = RMSNorm(c.hidden, c.eps)
        self.self_attn = Gemma4Attention(c)
        self.post_attention_layernorm = RMSNorm(c.hidden, c.eps)
        self.pre_feedforward_layernorm = RMSNorm(c.hidden, c.eps)
        self.mlp = GatedGelu(c.hidden, c.mlp)
        self.post_feedforward_layernorm = RMSNorm(c.hidden, c.eps)
        self.per_layer_input_gate = nn.Linear(c.hidden, c.width, bias=False)
        self.per_layer_projection = nn.Linear(c.width, c.hidden, bias=False)
        self.post_per_layer_input_norm = RMSNorm(c.hidden, c.eps)
        self.layer_scalar = nn.Parameter(torch.ones(1))

    def forward(self, x_NH: Tensor, cos_N1D: Tensor, sin_N1D: Tensor, level_NW: Tensor | None) -> Tensor:
        """Run the layer with its level: (N, H), (N, 1, D) twice, (N, W) or None -> (N, H).

        None leaves the level's part of the layer out, as vLLM's `Gemma4DecoderLayer` does.
        """
        attended_NH = self.self_attn(self.input_layernorm(x_NH), cos_N1D, sin_N1D)
        x_NH = x_NH + self.post_attention_layernorm(attended_NH)
        x_NH = x_NH + self.post_feedforward_layernorm(self.mlp(self.pre_feedforward_layernorm(x_NH)))
        if level_NW is not None:
            gate_NW = F.gelu(self.per_layer_input_gate(x_NH), approximate="tanh")
            product_NH = self.per_layer_projection(gate_NW * level_NW)
            x_NH = x_NH + self.post_per_layer_input_norm(product_NH)
        return x_NH * self.layer_scalar


class Gemma4Decoder(nn.Module):
    """A `deepstack_harness.contract.protocols.Decoder`, which loads state dicts as `Qwen3VLDecoder` does."""

    def __init__(self, config: Gemma4Config) -> None:
        super().__init__()
        c = config
        self.layers = nn.ModuleList(Gemma4DecoderLayer(c) for _ in range(c.layers))
        self.norm = RMSNorm(c.hidden, c.eps)
        self.per_layer_model_projection = nn.Linear(c.hidden, c.layers * c.width, bias=False)
        self.per_layer_projection_norm = RMSNorm(c.width, c.eps)
        self.rotary_sliding = Rope(c.head_dim, c.theta)
        self.rotary_full = PartialRope(c.head_dim, c.full_theta, c.partial_rotary_factor)
        self.full = tuple(c.is_full(layer) for layer in range(c.layers))
        self.scale = c.hidden**-0.5
        self.width = c.width
        self.register_load_state_dict_pre_hook(drop_embeddings)  # type: ignore[no-untyped-call]

    def forward(self, hidden: Tensor, positions: Tensor, payload: tuple[Tensor, ...] | None) -> Tensor:
        """Run all layers: hidden (N, H), positions (3, N) int64, one (N, W) per layer or None -> (N, H).

        Of `positions` only axis 0 is used.
        """
        out_NH: Tensor = self.norm(self.run_layers(hidden, positions, self.mixed(hidden, payload)))
        return out_NH

    def mixed(self, hidden: Tensor, payload: tuple[Tensor, ...] | None) -> Tensor:
        """Mix the levels with a projection of the embeddings: (N, H), one (N, W) per layer -> (N, I, W).

        None gives only the projection. Levels of zeros give the same but for a factor, which the norm at
        the end of each layer takes out again.
        """
        projected = torch.unflatten(
            self.per_layer_model_projection(hidden) * self.scale, -1, (-1, self.width)
        )
        projected_NIW: Tensor = self.per_layer_projection_norm(projected)
        if payload is None:
            return projected_NIW
        return (projected_NIW + torch.stack(payload, dim=1)) * 2**-0.5

    def run_layers(
        self,
        x_NH: Tensor,
        positions: Tensor,
        mixed_NIW: Tensor | None,
        start: int = 0,
        end: int | None = None,
    ) -> Tensor:
        """Run the layers [start, end), numbered from 0: (N, H), (3, N) int64, (N, I, W) or None -> (N, H)."""
        angles = [rope(positions, x_NH.dtype) for rope in (self.rotary_sliding, self.rotary_full)]
        for index in range(len(self.layers))[start:end]:
            level_NW = None if mixed_NIW is None else mixed_NIW[:, index]
            x_NH = self.layers[index](x_NH, *angles[self.full[index]], level_NW)
        return x_NH


class Gemma4Family(TinyFamily[Gemma4Config]):
    """Gemma 4 text decoder: a level of per-layer inputs multiplied by a gate in each layer."""

    base = "gemma4"
    payload_kind = PayloadKind.EVERY_TOKEN

    @property
    @override
    def width(self) -> int:
        return self.config.width

    @override
    def decoder(self) -> nn.Module:
        return Gemma4Decoder(self.config)

    @override
    def positions(self, tokens: int, device: torch.device) -> Tensor:
        """Return positions (3, tokens) int64; Gemma counts tokens on one axis."""
        return counted_positions(tokens, device)


FAMILY: "Family" = Gemma4Family(Gemma4Config())
