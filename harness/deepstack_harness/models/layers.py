"""Building blocks of the tiny decoders, flat over the tokens of one sequence.

Shapes in names: N tokens (as queries), S the same tokens (as keys), H hidden, A attention heads, K key/value
heads, G = A / K query heads per key/value head, D head dimension, L = D / 2 rotary lanes, M width of the
feed-forward layer. Submodules have the names of Hugging Face's, so that its state dicts load.

Attention is causal with grouped queries, in three kinds: torch's own function, one written out in matrix
products, and one inside a custom op (`torch.library.custom_op`), which the compiler cannot look into, as in
engines. The op sees the tensors of each call, whatever sizes the graph was compiled for, so that its count
of rows (`attended_rows`) is the number of rows that the graph really processed.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  (its usual name)
from torch.nn.attention import SDPBackend, sdpa_kernel
from typing_extensions import override

from deepstack_harness.errors import UsageError, unknown_name


def at_least_fp32(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of norms, angles and softmax: float32, or float64 in a float64 model."""
    return torch.promote_types(dtype, torch.float32)


def sdpa(q_AND: Tensor, k_KSD: Tensor, v_KSD: Tensor, scale: float) -> Tensor:
    """Attend causally with torch's own function: (A, N, D), (K, S, D), (K, S, D) -> (A, N, D)."""
    # The plain kernel: torch's fused CPU kernel divides by zero (SIGFPE) at N = 0, and a graph that was
    # traced at N > 1 calls it there once its guards are dropped.  torch 2.13 takes the fused kernel for
    # batched inputs only, torch 2.14 for these shapes too. A branch on N = 0 would add a guard to the
    # graph that is measured.
    with sdpa_kernel(SDPBackend.MATH):
        return F.scaled_dot_product_attention(
            q_AND, k_KSD, v_KSD, is_causal=True, scale=scale, enable_gqa=True
        )


def written_out(q_AND: Tensor, k_KSD: Tensor, v_KSD: Tensor, scale: float) -> Tensor:
    """Attend causally, head by head in plain operations: (A, N, D), (K, S, D), (K, S, D) -> (A, N, D)."""
    # No batched products: Inductor's CPU backend checks for sizes of one token there, which an unbacked
    # size cannot decide.
    token_N = torch.arange(q_AND.size(1), device=q_AND.device)
    later_NS = token_N > token_N[:, None]
    heads = zip(q_AND.chunk(k_KSD.size(0)), k_KSD, v_KSD, strict=True)
    return torch.cat([_one_head(q_GND * scale, k_SD, v_SD, later_NS) for q_GND, k_SD, v_SD in heads])


def _one_head(q_GND: Tensor, k_SD: Tensor, v_SD: Tensor, later_NS: Tensor) -> Tensor:
    """Attend with the query heads that share one key and value head.

    (G, N, D), (S, D), (S, D) and a mask (N, S) -> (G, N, D).
    """
    group = (q_GND.size(0), -1)
    score_GNS = torch.unflatten(q_GND.flatten(0, 1) @ k_SD.T, 0, group).masked_fill(later_NS, -torch.inf)
    share_GNS = score_GNS.softmax(-1, dtype=at_least_fp32(q_GND.dtype)).to(q_GND.dtype)
    return torch.unflatten(share_GNS.flatten(0, 1) @ v_SD, 0, group)


Run = Callable[[], Tensor]
Around = Callable[[Run], Tensor]

_collectors: list[list[int]] = []
_arounds: list[Around] = []


@torch.library.custom_op("deepstack_harness::attention", mutates_args=())
def attention(q_AND: Tensor, k_KSD: Tensor, v_KSD: Tensor, scale: float) -> Tensor:
    """Run `sdpa` inside the innermost `around_attention`: (A, N, D), (K, S, D), (K, S, D) -> (A, N, D).

    The result is contiguous.
    """

    def run() -> Tensor:
        if _collectors:
            _collectors[-1].append(q_AND.size(1))
        return sdpa(q_AND, k_KSD, v_KSD, scale).contiguous()

    return _arounds[-1](run) if _arounds else run()


@attention.register_fake
def _(q_AND: Tensor, *_: object) -> Tensor:
    return torch.empty_like(q_AND, memory_format=torch.contiguous_format)


def opaque(q_AND: Tensor, k_KSD: Tensor, v_KSD: Tensor, scale: float) -> Tensor:
    """Attend causally in one op of a graph: (A, N, D), (K, S, D), (K, S, D) -> (A, N, D)."""
    out_AND: Tensor = attention(q_AND, k_KSD, v_KSD, scale)
    return out_AND


@contextmanager
def attended_rows() -> Iterator[list[int]]:
    """Collect how many token rows each call of the op is given, in order, until it is closed.

    Only the innermost open collector collects. Tracing and compiling call no kernel and add nothing;
    a hook that runs attention again adds again.
    """
    rows: list[int] = []
    _collectors.append(rows)
    try:
        yield rows
    finally:
        _collectors.pop()


@contextmanager
def around_attention(on_attention: Around) -> Iterator[None]:
    """Call `on_attention(run)` in place of every call of the op, until it is closed.

    `run()` does the attention on the tensors of that call. It may be called again later, as the
    replay of a graph that was broken at the op does. The result of `on_attention` goes on into the
    graph: (A, N, D), contiguous, and not a view of an input. The innermost open hook is called.
    """
    _arounds.append(on_attention)
    try:
        yield
    finally:
        _arounds.pop()


AttentionKind = Literal["sdpa", "written_out", "opaque"]


@dataclass(frozen=True)
class DecoderConfig(ABC):
    """Sizes that every family has; the defaults are tiny.

    `mlp` is the width of the feed-forward layer, `theta` the base of the rotary angles, `eps` that of
    the norms. Making one raises `UsageError` for sizes that do not go together.
    """

    hidden: int = 128
    mlp: int = 256
    layers: int = 4
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    theta: float = 1e4
    eps: float = 1e-6
    attention: AttentionKind = "sdpa"

    @property
    @abstractmethod
    def levels(self) -> int:
        """Number of levels of the payload."""

    def __post_init__(self) -> None:
        """Check the sizes; raises `UsageError` for those that no decoder can have."""
        if self.attention not in get_args(AttentionKind):
            raise unknown_name("attention", self.attention, get_args(AttentionKind))
        if self.heads % self.kv_heads:
            raise UsageError(f"{self.heads} heads are not a multiple of {self.kv_heads} key/value heads")


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
        out_NH: Tensor = self.down_proj(self.gate(self.gate_proj(x_NH)) * self.up_proj(x_NH))
        return out_NH

    def gate(self, x_NM: Tensor) -> Tensor:
        """Apply the activation of the gate: (N, M) -> (N, M)."""
        return F.silu(x_NM)


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
        # Integers, so that a cast of the model to another dtype leaves them as they are. On the CPU
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
        v_NKD = self.norm_values(self.v_proj(x_NH).unflatten(-1, heads))
        q_AND, k_KSD, v_KSD = (x.transpose(0, 1) for x in (q_NAD, k_NKD, v_NKD))
        out_AND = self.attend(q_AND, k_KSD, v_KSD, self.scale)
        out_NH: Tensor = self.o_proj(out_AND.transpose(0, 1).flatten(1))
        return out_NH

    def norm_values(self, v_NKD: Tensor) -> Tensor:
        """Return the value heads (N, K, D) as they are; some models norm them."""
        return v_NKD


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
    shows in the output. Norm weights are normal around 1.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            normal = torch.randn(parameter.shape, generator=generator, dtype=torch.float32, device="cpu")
            parameter.copy_(1 + normal / 8 if normal.ndim == 1 else normal * normal.size(-1) ** -0.5)


# Tokens of text, then the (height, width) of the image after it, over and over.
LAYOUT = ((3, (2, 3)), (2, (4, 2)), (5, (3, 4)))


def mrope_positions(tokens: int, device: torch.device) -> Tensor:
    """Return positions (3, `tokens`) int64 of a made-up text with images, as Qwen-VL numbers them.

    A text token has the same number on all three axes (time, height, width). The tokens of an image share
    the time of its start, and count height and width from there. The text after the image goes on after
    the largest of these numbers (transformers, `Qwen3VLModel.get_rope_index`). The positions of fewer tokens
    are the start of those of more.

    Raises `UsageError` for a negative count.
    """
    _check_count(tokens)
    rows = list(islice(_mrope_rows(), tokens))
    # A clone: of one token, `contiguous` would keep the strides (1, 3).
    columns = torch.tensor(rows, dtype=torch.int64).reshape(tokens, 3).T
    return columns.clone(memory_format=torch.contiguous_format).to(device)


def counted_positions(tokens: int, device: torch.device) -> Tensor:
    """Return positions (3, `tokens`) int64 of a model with one axis: 0, 1, 2, .. in each row.

    Raises `UsageError` for a negative count.
    """
    _check_count(tokens)
    return torch.arange(tokens, device=device).repeat(3, 1)


def _check_count(tokens: int) -> None:
    if tokens < 0:
        raise UsageError(f"there are no positions for {tokens} tokens; ask for 0 or more")


def _mrope_rows() -> Iterator[tuple[int, int, int]]:
    start = 0
    for text, (height, width) in cycle(LAYOUT):
        yield from ((at, at, at) for at in range(start, start + text))
        start += text
        yield from ((start, start + y, start + x) for y in range(height) for x in range(width))
        start += max(height, width)
