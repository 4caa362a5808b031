"""Building blocks of the tiny decoders, flat over the tokens of one sequence.

Shapes in names: N tokens (as queries), S the same tokens (as keys), H hidden,
A attention heads, K key/value heads, G = A / K query heads to each of them,
D head dimension, L = D / 2 rotary lanes.  Submodules are named as Hugging Face
names them, so that its state dicts load.
"""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  (its usual name)

AttentionKind = Literal["sdpa", "written_out"]


def at_least_fp32(dtype: torch.dtype) -> torch.dtype:
    """What norms, angles and softmax are computed in: fp32, or fp64 where the model is."""
    return torch.promote_types(dtype, torch.float32)


class RMSNorm(nn.Module):
    """Scale the last dimension to a mean square of 1, then by a weight for each column."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """(.., width) -> the same shape and dtype."""
        wide = x.to(at_least_fp32(x.dtype))
        normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return self.weight * normed.to(x.dtype)


class SwiGLU(nn.Module):
    """The gated feed-forward layer."""

    def __init__(self, hidden: int, mlp: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden, mlp, bias=False)
        self.up_proj = nn.Linear(hidden, mlp, bias=False)
        self.down_proj = nn.Linear(mlp, hidden, bias=False)

    def forward(self, x_NH: Tensor) -> Tensor:
        """(N, H) -> (N, H)."""
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x_NH)) * self.up_proj(x_NH))
        return out


class InterleavedMRope(nn.Module):
    """Rotary angles over three axes (time, height, width) that take turns lane by lane.

    Lane l turns with axis l mod 3 as long as l < 3 * sections[axis], and with time
    behind that (Qwen3-VL technical report, "interleaved MRoPE"; transformers,
    `Qwen3VLTextRotaryEmbedding`).
    """

    def __init__(self, head_dim: int, sections: tuple[int, int, int], theta: float) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.theta = theta
        axes = [lane % 3 if lane < 3 * sections[lane % 3] else 0 for lane in range(head_dim // 2)]
        # Integers: a cast of the model to another dtype leaves them as they are.
        self.register_buffer("axis_L", torch.tensor(axes), persistent=False)
        self.axis_L: Tensor

    def forward(self, positions_3N: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Positions (3, N) int64 -> cos and sin, each (N, 1, D) in `dtype`."""
        exact = at_least_fp32(dtype)
        even = torch.arange(0, self.head_dim, 2, dtype=exact, device=positions_3N.device)
        frequency_L = 1.0 / self.theta ** (even / self.head_dim)
        angle_NL = positions_3N.index_select(0, self.axis_L).T.to(exact) * frequency_L
        angle_N1D = torch.cat((angle_NL, angle_NL), dim=-1).unsqueeze(1)
        return angle_N1D.cos().to(dtype), angle_N1D.sin().to(dtype)


def rotate(x_NAD: Tensor, cos_N1D: Tensor, sin_N1D: Tensor) -> Tensor:
    """Turn the pairs (d, d + D/2) of each head by the token's angles; (N, A, D) -> (N, A, D)."""
    left, right = x_NAD.chunk(2, dim=-1)
    return x_NAD * cos_N1D + torch.cat((-right, left), dim=-1) * sin_N1D


def sdpa(q_AND: Tensor, k_KSD: Tensor, v_KSD: Tensor, scale: float) -> Tensor:
    """Causal attention by torch's own function; answers (A, N, D).

    Without a batch dimension torch takes its plain kernel.  With one, the fused CPU
    kernel ends up in the compiled graph, and that divides by zero (SIGFPE) at N = 0.
    """
    return F.scaled_dot_product_attention(q_AND, k_KSD, v_KSD, is_causal=True, scale=scale, enable_gqa=True)


def written_out(q_AND: Tensor, k_KSD: Tensor, v_KSD: Tensor, scale: float) -> Tensor:
    """The same, operation by operation; answers (A, N, D)."""
    q_KGND = torch.unflatten(q_AND, 0, (k_KSD.size(0), -1))
    score_KGNS = q_KGND @ k_KSD.unsqueeze(1).mT * scale
    token_N = torch.arange(q_AND.size(1), device=q_AND.device)
    score_KGNS = score_KGNS.masked_fill(token_N > token_N[:, None], -torch.inf)
    share_KGNS = score_KGNS.softmax(-1, dtype=at_least_fp32(q_AND.dtype)).to(q_AND.dtype)
    return (share_KGNS @ v_KSD.unsqueeze(1)).flatten(0, 1)


ATTENTION: dict[AttentionKind, Callable[[Tensor, Tensor, Tensor, float], Tensor]] = {
    "sdpa": sdpa,
    "written_out": written_out,
}


class Attention(nn.Module):
    """Causal self-attention with grouped queries and an RMSNorm for each query and key head."""

    def __init__(
        self, hidden: int, heads: int, kv_heads: int, head_dim: int, eps: float, kind: AttentionKind
    ) -> None:
        super().__init__()
        self.q_proj = nn.Linear(hidden, heads * head_dim, bias=False)
        self.k_proj = nn.Linear(hidden, kv_heads * head_dim, bias=False)
        self.v_proj = nn.Linear(hidden, kv_heads * head_dim, bias=False)
        self.o_proj = nn.Linear(heads * head_dim, hidden, bias=False)
        self.q_norm = RMSNorm(head_dim, eps)
        self.k_norm = RMSNorm(head_dim, eps)
        self.head_dim = head_dim
        self.attend = ATTENTION[kind]

    def forward(self, x_NH: Tensor, cos_N1D: Tensor, sin_N1D: Tensor) -> Tensor:
        """(N, H) -> (N, H); every token sees itself and those before it."""
        heads = (-1, self.head_dim)
        q_NAD = rotate(self.q_norm(self.q_proj(x_NH).unflatten(-1, heads)), cos_N1D, sin_N1D)
        k_NKD = rotate(self.k_norm(self.k_proj(x_NH).unflatten(-1, heads)), cos_N1D, sin_N1D)
        v_NKD = self.v_proj(x_NH).unflatten(-1, heads)
        q_AND, k_KSD, v_KSD = (x.transpose(0, 1) for x in (q_NAD, k_NKD, v_NKD))
        out_AND = self.attend(q_AND, k_KSD, v_KSD, self.head_dim**-0.5)
        out_NH: Tensor = self.o_proj(out_AND.transpose(0, 1).flatten(1))
        return out_NH


def draw_weights(model: nn.Module, seed: int) -> None:
    """Fill all parameters of `model` (on the CPU), in their order, from one generator.

    Matrices are normal with deviation 1/sqrt(fan_in), so that signals keep their
    size and a payload shows in the output; norm weights are normal around 1.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            normal = torch.randn(parameter.shape, generator=generator, dtype=torch.float32, device="cpu")
            parameter.copy_(1 + normal / 8 if normal.ndim == 1 else normal * normal.size(-1) ** -0.5)
