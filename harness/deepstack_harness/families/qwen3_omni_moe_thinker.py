"""The thinker of Qwen3-Omni: Qwen3-VL's text decoder with a mixture of experts for its feed-forward.

Held against transformers' `Qwen3OmniMoeThinkerTextModel`, whose state dict it
loads as it is.  Shape letters are those of `deepstack_harness.families.layers`, and E
experts, I width of one expert.
"""

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  (its usual name)
from typing_extensions import override

from deepstack_harness.errors import UsageError
from deepstack_harness.families.attention import at_least_fp32
from deepstack_harness.families.config import ATTENTION_VARIANTS, Variant
from deepstack_harness.families.family import TinyFamily
from deepstack_harness.families.qwen3_vl import Qwen3VLConfig, Qwen3VLDecoder

if TYPE_CHECKING:
    from deepstack_harness.contract.protocols import Family


@dataclass(frozen=True)
class Qwen3OmniMoeThinkerConfig(Qwen3VLConfig):
    """As Qwen3-VL's; `mlp` is the width of one expert, `top_k` of the `experts` answer for a token."""

    theta: float = 1e6
    mlp: int = 64
    experts: int = 8
    top_k: int = 2

    def __post_init__(self) -> None:
        """Refuse sizes that do not go together."""
        super().__post_init__()
        if not 0 < self.top_k <= self.experts:
            raise UsageError(f"top_k {self.top_k} must lie in 1..{self.experts}, the number of experts")


class Router(nn.Module):
    """Each token's share of each expert: softmax in fp32, the top k, renormalised to a sum of 1."""

    def __init__(self, hidden: int, experts: int, top_k: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(experts, hidden))
        self.top_k = top_k

    def forward(self, x_NH: Tensor) -> Tensor:
        """(N, H) -> (N, E), zero but for k experts."""
        share_NE = F.linear(x_NH, self.weight).softmax(-1, dtype=at_least_fp32(x_NH.dtype))
        top_Nk, chosen_Nk = share_NE.topk(self.top_k)
        top_Nk = top_Nk / top_Nk.sum(-1, keepdim=True)
        return torch.zeros_like(share_NE).scatter(-1, chosen_Nk, top_Nk).to(x_NH.dtype)


class Experts(nn.Module):
    """Gated feed-forward layers side by side, their weights fused as transformers fuses them."""

    def __init__(self, hidden: int, mlp: int, experts: int) -> None:
        super().__init__()
        self.gate_up_proj = nn.Parameter(torch.empty(experts, 2 * mlp, hidden))
        self.down_proj = nn.Parameter(torch.empty(experts, hidden, mlp))

    def forward(self, x_NH: Tensor, share_NE: Tensor) -> Tensor:
        """(N, H) and shares (N, E) -> (N, H).

        Every expert sees every token, and most shares are zero: E / k times the
        arithmetic of a kernel that routes, in room for N x E x 2I, but no shape depends
        on the data, no weight is copied, and it runs in fp64 and at N = 0.
        """
        both = torch.unflatten(F.linear(x_NH, self.gate_up_proj.flatten(0, 1)), -1, (share_NE.size(-1), -1))
        gate_NEI, up_NEI = both.chunk(2, dim=-1)
        inner_NEI = F.silu(gate_NEI) * up_NEI * share_NE.unsqueeze(-1)
        out_NH = torch.zeros_like(x_NH)
        for inner_NI, down_HI in zip(inner_NEI.unbind(1), self.down_proj, strict=True):
            out_NH = torch.addmm(out_NH, inner_NI, down_HI.T)
        return out_NH


class SparseMoeBlock(nn.Module):
    """Router and experts."""

    def __init__(self, config: Qwen3OmniMoeThinkerConfig) -> None:
        super().__init__()
        self.experts = Experts(config.hidden, config.mlp, config.experts)
        self.gate = Router(config.hidden, config.experts, config.top_k)

    def forward(self, x_NH: Tensor) -> Tensor:
        """(N, H) -> (N, H)."""
        out_NH: Tensor = self.experts(x_NH, self.gate(x_NH))
        return out_NH


class Qwen3OmniMoeThinkerFamily(TinyFamily[Qwen3OmniMoeThinkerConfig]):
    """Qwen3-Omni's thinker; `30b_a3b` has the sizes of Qwen3-Omni-30B-A3B's (its own are 48 layers)."""

    base = "qwen3_omni_moe_thinker"
    routed = True
    variants = MappingProxyType(
        {
            **ATTENTION_VARIANTS,
            "30b_a3b": Variant(
                "the sizes of Qwen3-Omni-30B-A3B, 3 layers of 48, 1.9 billion weights",
                {
                    "hidden": 2048, "mlp": 768, "heads": 32, "kv_heads": 4, "head_dim": 128,
                    "sections": (24, 20, 20), "experts": 128, "top_k": 8, "layers": 3,
                },
            ),
        }
    )  # fmt: skip

    @override
    def decoder(self) -> nn.Module:
        return Qwen3VLDecoder(self.config, lambda: SparseMoeBlock(self.config))


FAMILY: "Family" = Qwen3OmniMoeThinkerFamily(Qwen3OmniMoeThinkerConfig())
