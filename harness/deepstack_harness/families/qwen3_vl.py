"""The text decoder of Qwen3-VL: level i of the payload is added after layer i.

Held against transformers' `Qwen3VLTextModel`, whose state dict it loads as it is.
Shape letters are those of `deepstack_harness.families.layers`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

from torch import Tensor, nn
from typing_extensions import override

from deepstack_harness.errors import UsageError
from deepstack_harness.families.config import ATTENTION_VARIANTS, DecoderConfig, Variant
from deepstack_harness.families.family import TinyFamily, drop_embeddings
from deepstack_harness.families.layers import Attention, InterleavedMRope, RMSNorm, SwiGLU

if TYPE_CHECKING:
    from deepstack_harness.contract.protocols import Family

PayloadOrder = Literal["after_layer", "into_mlp", "into_residual"]


@dataclass(frozen=True)
class Qwen3VLConfig(DecoderConfig):
    """Rotary base and norm epsilon as in the released models.

    `sections` are rotary lanes per axis (time, height, width), `levels` the
    payload's, `order` is that of the additions at the end of a layer.
    """

    theta: float = 5e6
    sections: tuple[int, int, int] = (6, 5, 5)
    levels: int = 3
    order: PayloadOrder = "after_layer"

    def __post_init__(self) -> None:
        """Refuse sizes that do not go together."""
        super().__post_init__()
        if 2 * sum(self.sections) != self.head_dim:
            raise UsageError(f"sections {self.sections} must add up to half of head_dim {self.head_dim}")
        if self.levels > self.layers:
            raise UsageError(f"{self.levels} levels need as many layers, not {self.layers}")
        if self.order not in ADDITIONS:
            raise UsageError(f"unknown order of additions '{self.order}'; known are {', '.join(ADDITIONS)}")


# One sum of what came in, the feed-forward's answer and the level, (N, H) each.  In half
# precision the order tells: transformers adds the level last; sglang's inference and vLLM add it
# to the answer, which is summed with the rest by the next norm (sglang 34690, where another order
# moved FP8 grounding by 150 pixels; vLLM 0.33.0, `Qwen3LLMModel.forward`).
ADDITIONS: Mapping[PayloadOrder, Callable[[Tensor, Tensor, Tensor], Tensor]] = MappingProxyType(
    {
        "after_layer": lambda x_NH, answer_NH, level_NH: (x_NH + answer_NH) + level_NH,
        "into_mlp": lambda x_NH, answer_NH, level_NH: x_NH + (answer_NH + level_NH),
        "into_residual": lambda x_NH, answer_NH, level_NH: (x_NH + level_NH) + answer_NH,
    }
)


class DecoderLayer(nn.Module):
    """Attention and feed-forward, each behind a norm and added to what came in."""

    def __init__(self, config: Qwen3VLConfig, mlp: nn.Module) -> None:
        super().__init__()
        c = config
        self.input_layernorm = RMSNorm(c.hidden, c.eps)
        self.self_attn = Attention(c, scale=c.head_dim**-0.5, normed=True)
        self.post_attention_layernorm = RMSNorm(c.hidden, c.eps)
        self.mlp = mlp
        self.add = ADDITIONS[c.order]

    def forward(self, x_NH: Tensor, cos_N1D: Tensor, sin_N1D: Tensor, level_NH: Tensor | None) -> Tensor:
        """(N, H) -> (N, H)."""
        x_NH = x_NH + self.self_attn(self.input_layernorm(x_NH), cos_N1D, sin_N1D)
        answer_NH: Tensor = self.mlp(self.post_attention_layernorm(x_NH))
        return x_NH + answer_NH if level_NH is None else self.add(x_NH, answer_NH, level_NH)


class Qwen3VLDecoder(nn.Module):
    """A `deepstack_harness.contract.protocols.Decoder`.

    `load_state_dict` takes a `Qwen3VLTextModel`'s as it is and stays strict; of
    its entries only `embed_tokens.weight` is left out: this decoder starts from
    embeddings.
    """

    def __init__(self, config: Qwen3VLConfig, mlp: Callable[[], nn.Module] | None = None) -> None:
        super().__init__()
        make = mlp or (lambda: SwiGLU(config.hidden, config.mlp))
        self.layers = nn.ModuleList(DecoderLayer(config, make()) for _ in range(config.layers))
        self.norm = RMSNorm(config.hidden, config.eps)
        self.rotary_emb = InterleavedMRope(config.head_dim, config.sections, config.theta)
        self.register_load_state_dict_pre_hook(drop_embeddings)  # type: ignore[no-untyped-call]

    def forward(self, hidden: Tensor, positions: Tensor, payload: tuple[Tensor, ...] | None) -> Tensor:
        """Hidden (N, H), positions (3, N) int64, payload one (N, H) per level or None -> (N, H).

        As many levels are added as the payload has, whatever the family says; as in
        the engine nothing compares their rows with N but the addition itself.
        """
        cos_N1D, sin_N1D = self.rotary_emb(positions, hidden.dtype)
        x_NH = hidden
        for index, layer in enumerate(self.layers):
            level_NH = payload[index] if payload is not None and index < len(payload) else None
            x_NH = layer(x_NH, cos_N1D, sin_N1D, level_NH)
        out_NH: Tensor = self.norm(x_NH)
        return out_NH


class Qwen3VLFamily(TinyFamily[Qwen3VLConfig]):
    """Qwen3-VL; `2b` has the sizes of Qwen3-VL-2B's text model (its own are 28 layers)."""

    base = "qwen3_vl"
    variants = MappingProxyType(
        {
            **ATTENTION_VARIANTS,
            "payload_into_mlp": Variant(
                "payload added to the feed-forward's answer first, as vLLM and sglang do",
                {"order": "into_mlp"},
            ),
            "payload_into_residual": Variant(
                "payload added before the feed-forward's answer", {"order": "into_residual"}
            ),
            "2b": Variant(
                "the sizes of Qwen3-VL-2B, 4 layers of 28",
                {
                    "hidden": 2048, "mlp": 6144, "heads": 16, "kv_heads": 8, "head_dim": 128,
                    "sections": (24, 20, 20),
                },
            ),
        }
    )  # fmt: skip

    @override
    def decoder(self) -> nn.Module:
        return Qwen3VLDecoder(self.config)


FAMILY: "Family" = Qwen3VLFamily(Qwen3VLConfig())
