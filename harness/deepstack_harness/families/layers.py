"""Building blocks of the tiny decoders, flat over the tokens of one sequence.

Shapes in names: N tokens (as queries), S the same tokens (as keys), H hidden, A attention heads,
K key/value heads, G = A / K query heads per key/value head, D head dimension, L = D / 2 rotary lanes.
Submodules have the names of Hugging Face's, so that its state dicts load.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  (its usual name)
from typing_extensions import override

from deepstack_harness.families.attention import at_least_fp32, sdpa, written_out
from deepstack_harness.families.config import AttentionKind, DecoderConfig
from deepstack_harness.families.opaque import opaque

ATTENTION: dict[AttentionKind, Callable[[Tensor, Tensor, Tensor, float], Tensor]] = {
    "sdpa": sdpa,
    "written_out": written_out,
    "opaque": opaque,
}


class RMSNorm(nn.Module):
    """Norm that scales the last dimension to a mean square of 1, then by a weight for each column."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Scale (.., width) -> the same shape and dtype."""
        wide = x.to(at_least_fp32(x.dtype))
        normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return self.weight * normed.to(x.dtype)


class SwiGLU(nn.Module):
    """Gated feed-forward layer."""

    def __init__(self, hidden: int, mlp: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden, mlp, bias=False)
        self.up_proj = nn.Linear(hidden, mlp, bias=False)
        self.down_proj = nn.Linear(mlp, hidden, bias=False)

    def forward(self, x_NH: Tensor) -> Tensor:
        """Transform (N, H) -> (N, H)."""
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x_NH)) * self.up_proj(x_NH))
        return out


class Rope(nn.Module):
    """Rotary angles, in which lane l turns by the position times theta^(-2l / D)."""

    def __init__(self, head_dim: int, theta: float) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.theta = theta

    def forward(self, positions_3N: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Turn positions (3, N) int64 into cos and sin, each (N, 1, D) in `dtype`."""
        exact = at_least_fp32(dtype)
        even = torch.arange(0, self.head_dim, 2, dtype=exact, device=positions_3N.device)
        frequency_L = 1.0 / self.theta ** (even / self.head_dim)
        angle_NL = self.for_lanes(positions_3N).to(exact) * frequency_L
        angle_N1D = torch.cat((angle_NL, angle_NL), dim=-1).unsqueeze(1)
        return angle_N1D.cos().to(dtype), angle_N1D.sin().to(dtype)

    def for_lanes(self, positions_3N: Tensor) -> Tensor:
        """Select the positions that lanes turn by: of (3, N) those of axis 0, (N, 1), for all lanes."""
        return positions_3N[0].unsqueeze(-1)


class InterleavedMRope(Rope):
    """Rotary angles over three axes (time, height, width) that alternate lane by lane.

    Lane l turns with axis l mod 3 while l < 3 * sections[axis], and with time otherwise (Qwen3-VL
    technical report, "interleaved MRoPE"; transformers, `Qwen3VLTextRotaryEmbedding`).
    """

    def __init__(self, head_dim: int, sections: tuple[int, int, int], theta: float) -> None:
        super().__init__(head_dim, theta)
        axes = [lane % 3 if lane < 3 * sections[lane % 3] else 0 for lane in range(head_dim // 2)]
        # Integers, so that a cast of the model to another dtype leaves them as they are.  On the CPU
        # also inside `torch.device("meta")`, because these values are known and not drawn.
        self.register_buffer("axis_L", torch.tensor(axes, device="cpu"), persistent=False)
        self.axis_L: Tensor

    @override
    def for_lanes(self, positions_3N: Tensor) -> Tensor:
        """Select one axis for each lane: (3, N) -> (N, L)."""
        return positions_3N.index_select(0, self.axis_L).T


def rotate(x_NAD: Tensor, cos_N1D: Tensor, sin_N1D: Tensor) -> Tensor:
    """Turn the pairs (d, d + D/2) of each head by the token's angles, (N, 1, D): (N, A, D) -> (N, A, D)."""
    left, right = x_NAD.chunk(2, dim=-1)
    return x_NAD * cos_N1D + torch.cat((-right, left), dim=-1) * sin_N1D


class Attention(nn.Module):
    """Causal self-attention with grouped queries; `normed` adds an RMSNorm to each query and key head."""

    def __init__(self, config: DecoderConfig, *, scale: float, normed: bool) -> None:
        super().__init__()
        c = config
        self.q_proj = nn.Linear(c.hidden, c.heads * c.head_dim, bias=False)
        self.k_proj = nn.Linear(c.hidden, c.kv_heads * c.head_dim, bias=False)
        self.v_proj = nn.Linear(c.hidden, c.kv_heads * c.head_dim, bias=False)
        self.o_proj = nn.Linear(c.heads * c.head_dim, c.hidden, bias=False)
        self.q_norm = RMSNorm(c.head_dim, c.eps) if normed else nn.Identity()
        self.k_norm = RMSNorm(c.head_dim, c.eps) if normed else nn.Identity()
        self.head_dim = c.head_dim
        self.scale = scale
        self.attend = ATTENTION[c.attention]

    def forward(self, x_NH: Tensor, cos_N1D: Tensor, sin_N1D: Tensor) -> Tensor:
        """Attend from every token to itself and those before it.

        (N, H), cos and sin (N, 1, D) each -> (N, H).
        """
        heads = (-1, self.head_dim)
        q_NAD = rotate(self.q_norm(self.q_proj(x_NH).unflatten(-1, heads)), cos_N1D, sin_N1D)
        k_NKD = rotate(self.k_norm(self.k_proj(x_NH).unflatten(-1, heads)), cos_N1D, sin_N1D)
        v_NKD = self.v_proj(x_NH).unflatten(-1, heads)
        q_AND, k_KSD, v_KSD = (x.transpose(0, 1) for x in (q_NAD, k_NKD, v_NKD))
        out_AND = self.attend(q_AND, k_KSD, v_KSD, self.scale)
        out_NH: Tensor = self.o_proj(out_AND.transpose(0, 1).flatten(1))
        return out_NH


def give_storage(model: nn.Module, dtype: torch.dtype, device: torch.device) -> None:
    """Give a model that was built on the meta device empty weights of `dtype` on `device`.

    `Module.to_empty` would lose buffers, and building on the CPU first would need room for the
    float32 weights of a large model.
    """
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            empty = torch.empty(parameter.shape, dtype=dtype, device=device)
            setattr(module, name, nn.Parameter(empty, requires_grad=False))
        for name, buffer in module.named_buffers(recurse=False):
            setattr(module, name, buffer.to(device))


def draw_weights(model: nn.Module, seed: int) -> None:
    """Fill all parameters of `model` in their order, from one generator on the CPU.

    Matrices are normal with deviation 1/sqrt(fan_in), so that signals keep their size and a payload
    shows in the output.  Norm weights are normal around 1.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            normal = torch.randn(parameter.shape, generator=generator, dtype=torch.float32, device="cpu")
            parameter.copy_(1 + normal / 8 if normal.ndim == 1 else normal * normal.size(-1) ** -0.5)
