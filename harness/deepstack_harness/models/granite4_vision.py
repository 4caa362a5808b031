"""The text decoder of Granite 4 Vision: a level of the payload is added before its target layer.

Tests compare it with transformers' `Granite4VisionTextModel`, whose state dict it loads unchanged.
That model multiplies embeddings by `embedding_multiplier`. In vLLM the outer model does
(`Granite4VisionForConditionalGeneration.embed_input_ids`), so that `hidden` is multiplied already here.
Shape letters are those of `deepstack_harness.models.layers`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  (its usual name)
from typing_extensions import override

from deepstack_harness.errors import UsageError, unknown_name
from deepstack_harness.models.family import TinyFamily, drop_embeddings
from deepstack_harness.models.layers import Attention, DecoderConfig, RMSNorm, Rope, SwiGLU, counted_positions

if TYPE_CHECKING:
    from deepstack_harness.contract.protocols import Family


First = Literal["hidden", "payload"]
Payload = tuple[Tensor, ...] | None
Sizes = list[int]


@dataclass(frozen=True)
class Granite4VisionConfig(DecoderConfig):
    """Sizes with the multipliers, rotary base and norm epsilon of released Granite models.

    Levels come in the order of `layerwise` (features of several layers of the vision tower), then
    `spatial` (four offsets of its last layer). The numbers are the decoder layers that a level is
    added before; released models have 9, 6, 3, 0, then 12, 15, 18, 21. `first` is the input whose
    size the decoder reads first.
    """

    layers: int = 5
    theta: float = 1e7
    eps: float = 1e-5
    attention_multiplier: float = 1 / 32
    residual_multiplier: float = 0.22
    layerwise: tuple[int, ...] = (1, 0)
    spatial: tuple[int, ...] = (2, 4)
    first: First = "hidden"

    def __post_init__(self) -> None:
        """Check the layout; raises `UsageError` for targets that do not go together."""
        super().__post_init__()
        if len(set(self.targets)) < self.levels or not set(self.targets) <= set(range(self.layers)):
            raise UsageError(f"target layers {self.targets} must be different ones of 0..{self.layers - 1}")
        if self.first not in get_args(First):
            raise unknown_name("input", self.first, get_args(First))

    @property
    def targets(self) -> tuple[int, ...]:
        """The layer that each level is added before."""
        return (*self.layerwise, *self.spatial)

    @property
    @override
    def levels(self) -> int:
        return len(self.targets)

    def within(self, layers: int) -> dict[str, tuple[int, ...]]:
        """Return the two tuples of targets without those after the first `layers` layers."""
        return {
            name: tuple(target for target in getattr(self, name) if target < layers)
            for name in ("layerwise", "spatial")
        }


class GraniteDecoderLayer(nn.Module):
    """Attention and feed-forward, each after a norm, scaled, and added to its input."""

    def __init__(self, config: Granite4VisionConfig) -> None:
        super().__init__()
        c = config
        self.input_layernorm = RMSNorm(c.hidden, c.eps)
        self.self_attn = Attention(c, scale=c.attention_multiplier, normed=False)
        self.post_attention_layernorm = RMSNorm(c.hidden, c.eps)
        self.mlp = SwiGLU(c.hidden, c.mlp)
        self.residual_multiplier = c.residual_multiplier

    def forward(self, x_NH: Tensor, cos_N1D: Tensor, sin_N1D: Tensor) -> Tensor:
        """Run the layer: (N, H), cos and sin (N, 1, D) each -> (N, H)."""
        x_NH = x_NH + self.residual_multiplier * self.self_attn(self.input_layernorm(x_NH), cos_N1D, sin_N1D)
        out_NH: Tensor = x_NH + self.residual_multiplier * self.mlp(self.post_attention_layernorm(x_NH))
        return out_NH


class Granite4VisionDecoder(nn.Module):
    """A `deepstack_harness.contract.protocols.Decoder`, which loads state dicts as `Qwen3VLDecoder` does."""

    def __init__(self, config: Granite4VisionConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(GraniteDecoderLayer(config) for _ in range(config.layers))
        self.norm = RMSNorm(config.hidden, config.eps)
        self.rotary_emb = Rope(config.head_dim, config.theta)
        self.level_of = {layer: level for level, layer in enumerate(config.targets)}
        self.sizes = SIZES[config.first]
        self.register_load_state_dict_pre_hook(drop_embeddings)  # type: ignore[no-untyped-call]

    def forward(self, hidden: Tensor, positions: Tensor, payload: tuple[Tensor, ...] | None) -> Tensor:
        """Run all layers: hidden (N, H), positions (3, N) int64, one (rows, H) per level or None -> (N, H).

        Of `positions` only axis 0 is used. A level with more rows than N is cut, one with fewer is
        padded with zeros. Levels beyond the configured ones are ignored.
        """
        rows, tokens = self.sizes(hidden, payload)
        cos_N1D, sin_N1D = self.rotary_emb(positions, hidden.dtype)
        x_NH = hidden
        for index, layer in enumerate(self.layers):
            level = self.level_of.get(index)
            if payload is not None and level is not None and level < len(payload):
                x_NH = x_NH + fitted(payload[level], rows[level], tokens)
            x_NH = layer(x_NH, cos_N1D, sin_N1D)
        out_NH: Tensor = self.norm(x_NH)
        return out_NH


def fitted(level: Tensor, rows: int, tokens: int) -> Tensor:
    """Cut or pad a level (rows, H) to (tokens, H), but only where the two differ.

    The comparison is upstream's, of the whole buffer with the step. Where a trace finds the two equal,
    the comparison is gone from the graph (vllm 40917).
    """
    if rows == tokens:
        return level
    return F.pad(level[:tokens], (0, 0, 0, max(0, tokens - rows)))


def hidden_first(hidden: Tensor, payload: Payload) -> tuple[Sizes, int]:
    """Return the rows of each level (rows, H), and N of hidden (N, H), reading N first.

    That is the order of vLLM's `Granite4VisionLLMModel.forward`.
    """
    tokens = hidden.size(0)
    return [] if payload is None else [level.size(0) for level in payload], tokens


def payload_first(hidden: Tensor, payload: Payload) -> tuple[Sizes, int]:
    """Return the rows of each level (rows, H), and N of hidden (N, H), reading the rows first.

    Dynamo gives equal sizes one symbol, and takes its value at every call from the input that it met
    first. With the guards dropped, that decides what a graph traced with full buffers does to fewer
    tokens.
    """
    rows = [] if payload is None else [level.size(0) for level in payload]
    return rows, hidden.size(0)


SIZES: Mapping[First, Callable[[Tensor, Payload], tuple[Sizes, int]]] = MappingProxyType(
    {"hidden": hidden_first, "payload": payload_first}
)


class Granite4VisionFamily(TinyFamily[Granite4VisionConfig]):
    """Granite 4 Vision text decoder: payload added before its target layers, cut or padded to fit."""

    base = "granite4_vision"

    @override
    def decoder(self) -> nn.Module:
        return Granite4VisionDecoder(self.config)

    @override
    def positions(self, tokens: int, device: torch.device) -> Tensor:
        """Return positions (3, tokens) int64; Granite counts tokens on one axis."""
        return counted_positions(tokens, device)


FAMILY: "Family" = Granite4VisionFamily(Granite4VisionConfig())
