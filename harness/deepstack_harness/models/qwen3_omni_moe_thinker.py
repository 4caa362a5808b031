"""The thinker of Qwen3-Omni: Qwen3-VL's text decoder with a mixture of experts as its feed-forward.

Tests compare it with transformers' `Qwen3OmniMoeThinkerTextModel`, whose state dict it loads unchanged.
Shape letters are those of `deepstack_harness.models.layers`, and E experts, I width of one expert.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  (its usual name)
from typing_extensions import override

from deepstack_harness.errors import UsageError
from deepstack_harness.models.family import TinyFamily
from deepstack_harness.models.layers import at_least_fp32
from deepstack_harness.models.qwen3_vl import Qwen3VLConfig, Qwen3VLDecoder

if TYPE_CHECKING:
    from deepstack_harness.contract.protocols import Family


@dataclass(frozen=True)
class Qwen3OmniMoeThinkerConfig(Qwen3VLConfig):
    """Qwen3-VL's sizes, with `mlp` the width of one expert and `top_k` of `experts` used per token."""

    theta: float = 1e6
    mlp: int = 64
    experts: int = 8
    top_k: int = 2

    def __post_init__(self) -> None:
        """Check the sizes; raises `UsageError` for those that do not go together."""
        super().__post_init__()
        if not 0 < self.top_k <= self.experts:
            raise UsageError(f"top_k {self.top_k} must lie in 1..{self.experts}, the number of experts")


class Router(nn.Module):
    """Router that gives each token its share of each expert.

    Shares are a softmax in float32; the largest k are scaled to a sum of 1, and the others are 0.
    """

    def __init__(self, hidden: int, experts: int, top_k: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(experts, hidden))
        self.top_k = top_k

    def forward(self, x_NH: Tensor) -> Tensor:
        """Compute the shares (N, H) -> (N, E), zero but for k experts."""
        share_NE = F.linear(x_NH, self.weight).softmax(-1, dtype=at_least_fp32(x_NH.dtype))
        top_Nk, chosen_Nk = share_NE.topk(self.top_k)
        top_Nk = top_Nk / top_Nk.sum(-1, keepdim=True)
        return torch.zeros_like(share_NE).scatter(-1, chosen_Nk, top_Nk).to(x_NH.dtype)


class Experts(nn.Module):
    """Gated feed-forward layers side by side, with weights fused as in transformers."""

    def __init__(self, hidden: int, mlp: int, experts: int) -> None:
        super().__init__()
        self.gate_up_proj = nn.Parameter(torch.empty(experts, 2 * mlp, hidden))
        self.down_proj = nn.Parameter(torch.empty(experts, hidden, mlp))

    def forward(self, x_NH: Tensor, share_NE: Tensor) -> Tensor:
        """Sum the experts' outputs by their shares: (N, H) and shares (N, E) -> (N, H).

        Every expert computes every token, although most shares are zero. That is E / k times the
        arithmetic of a kernel that routes, and needs room for N x E x 2I values. In return no shape
        depends on the data, no weight is copied, and it runs in float64 and at N = 0.
        """
        both = torch.unflatten(F.linear(x_NH, self.gate_up_proj.flatten(0, 1)), -1, (share_NE.size(-1), -1))
        gate_NEI, up_NEI = both.chunk(2, dim=-1)
        inner_NEI = F.silu(gate_NEI) * up_NEI * share_NE.unsqueeze(-1)
        out_NH = torch.zeros_like(x_NH)
        for inner_NI, down_HI in zip(inner_NEI.unbind(1), self.down_proj, strict=True):
            out_NH = torch.addmm(out_NH, inner_NI, down_HI.T)
        return out_NH


class SparseMoeBlock(nn.Module):
    """Feed-forward of a router and its experts."""

    def __init__(self, config: Qwen3OmniMoeThinkerConfig) -> None:
        super().__init__()
        self.experts = Experts(config.hidden, config.mlp, config.experts)
        self.gate = Router(config.hidden, config.experts, config.top_k)

    def forward(self, x_NH: Tensor) -> Tensor:
        """Transform (N, H) -> (N, H)."""
        out_NH: Tensor = self.experts(x_NH, self.gate(x_NH))
        return out_NH


class Qwen3OmniMoeThinkerFamily(TinyFamily[Qwen3OmniMoeThinkerConfig]):
    """Qwen3-Omni thinker: Qwen3-VL's decoder with a mixture of experts."""

    base = "qwen3_omni_moe_thinker"
    routed = True

    @override
    def decoder(self) -> nn.Module:
        return Qwen3VLDecoder(self.config, lambda: SparseMoeBlock(self.config))


FAMILY: "Family" = Qwen3OmniMoeThinkerFamily(Qwen3OmniMoeThinkerConfig())
