"""The text decoder of Qwen3-VL: level i of the payload is added after layer i.

Tests compare it with transformers' `Qwen3VLTextModel`, whose state dict it loads unchanged.
Shape letters are those of `deepstack_harness.models.layers`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

from torch import Tensor, nn
from typing_extensions import override

from deepstack_harness.errors import UsageError, unknown_name
from deepstack_harness.models.family import TinyFamily, drop_embeddings
from deepstack_harness.models.layers import Attention, DecoderConfig, InterleavedMRope, RMSNorm, SwiGLU

if TYPE_CHECKING:
    from deepstack_harness.contract.protocols import Family


PayloadOrder = Literal["after_layer", "into_mlp", "into_residual"]


@dataclass(frozen=True)
class Qwen3VLConfig(DecoderConfig):
    """Sizes with the rotary base and norm epsilon of the released models.

    `sections` are the rotary lanes per axis (time, height, width), `levels` the levels of the
    payload, `order` the order of the additions at the end of a layer.

    >>> Qwen3VLConfig(layers=4, levels=3).levels
    3
    """

    theta: float = 5e6
    sections: tuple[int, int, int] = (6, 5, 5)
    levels: int = 3
    order: PayloadOrder = "after_layer"

    def __post_init__(self) -> None:
        """Check the sizes; raises `UsageError` for those that do not go together."""
        super().__post_init__()
        if 2 * sum(self.sections) != self.head_dim:
            raise UsageError(f"sections {self.sections} must add up to half of head_dim {self.head_dim}")
        if self.levels > self.layers:
            raise UsageError(f"{self.levels} levels need as many layers, not {self.layers}")
        if self.order not in ADDITIONS:
            raise unknown_name("order of additions", self.order, ADDITIONS)


# The sum of the layer's input, the feed-forward's output and the level, each (N, H). In half precision
# the order matters: transformers adds the level last; sglang and vLLM add it to the output, which the
# next norm adds to the rest (sglang 34690, where another order moved FP8 grounding by 150 pixels;
# vLLM 0.33.0, `Qwen3LLMModel.forward`).
ADDITIONS: Mapping[PayloadOrder, Callable[[Tensor, Tensor, Tensor], Tensor]] = MappingProxyType(
    {
        "after_layer": lambda x_NH, answer_NH, level_NH: (x_NH + answer_NH) + level_NH,
        "into_mlp": lambda x_NH, answer_NH, level_NH: x_NH + (answer_NH + level_NH),
        "into_residual": lambda x_NH, answer_NH, level_NH: (x_NH + level_NH) + answer_NH,
    }
)


class QwenDecoderLayer(nn.Module):
    """Attention and feed-forward, each after a norm and added to its input."""

    def __init__(self, config: Qwen3VLConfig, mlp: nn.Module) -> None:
        super().__init__()
        c = config
        self.input_layernorm = RMSNorm(c.hidden, c.eps)
        self.self_attn = Attention(c, scale=c.head_dim**-0.5, normed=True)
        self.post_attention_layernorm = RMSNorm(c.hidden, c.eps)
        self.mlp = mlp
        self.add = ADDITIONS[c.order]

    def forward(self, x_NH: Tensor, cos_N1D: Tensor, sin_N1D: Tensor, level_NH: Tensor | None) -> Tensor:
        """Run the layer and add a level of the payload: (N, H), (N, 1, D) twice, (N, H) or None -> (N, H)."""
        x_NH = x_NH + self.self_attn(self.input_layernorm(x_NH), cos_N1D, sin_N1D)
        answer_NH: Tensor = self.mlp(self.post_attention_layernorm(x_NH))
        return x_NH + answer_NH if level_NH is None else self.add(x_NH, answer_NH, level_NH)


class Qwen3VLDecoder(nn.Module):
    """A `deepstack_harness.contract.protocols.Decoder`.

    `load_state_dict` takes the state dict of a `Qwen3VLTextModel` and stays strict. It leaves out
    `embed_tokens.weight` only, because this decoder starts from embeddings.
    """

    def __init__(self, config: Qwen3VLConfig, mlp: Callable[[], nn.Module] | None = None) -> None:
        super().__init__()
        make = mlp or (lambda: SwiGLU(config.hidden, config.mlp))
        self.layers = nn.ModuleList(QwenDecoderLayer(config, make()) for _ in range(config.layers))
        self.norm = RMSNorm(config.hidden, config.eps)
        self.rotary_emb = InterleavedMRope(config.head_dim, config.sections, config.theta)
        self.register_load_state_dict_pre_hook(drop_embeddings)  # type: ignore[no-untyped-call]

    def forward(self, hidden: Tensor, positions: Tensor, payload: tuple[Tensor, ...] | None) -> Tensor:
        """Run all layers: hidden (N, H), positions (3, N) int64, one (N, H) per level or None -> (N, H).

        Every level of the payload is added, whatever number the family states. As in the engine,
        only the addition itself compares the rows of a level with N.
        """
        cos_N1D, sin_N1D = self.rotary_emb(positions, hidden.dtype)
        x_NH = hidden
        for index, layer in enumerate(self.layers):
            level_NH = payload[index] if payload is not None and index < len(payload) else None
            x_NH = layer(x_NH, cos_N1D, sin_N1D, level_NH)
        out_NH: Tensor = self.norm(x_NH)
        return out_NH


class Qwen3VLFamily(TinyFamily[Qwen3VLConfig]):
    """Qwen3-VL text decoder: interleaved MRoPE, dense feed-forward, payload added after its first layers.

    >>> family = Qwen3VLFamily(Qwen3VLConfig(layers=3, levels=3))
    >>> family.positions(5, torch.device("cpu")).shape
    torch.Size([3, 5])
    """

    base = "qwen3_vl"

    @override
    def decoder(self) -> nn.Module:
        return Qwen3VLDecoder(self.config)


FAMILY: "Family" = Qwen3VLFamily(Qwen3VLConfig())
