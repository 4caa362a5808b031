"""Causal attention with grouped queries: torch's own function, and one written out in matrix products.

Shape letters are those of `deepstack_harness.families.layers`.
"""

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812  (its usual name)
from torch.nn.attention import SDPBackend, sdpa_kernel


def at_least_fp32(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of norms, angles and softmax: float32, or float64 in a float64 model."""
    return torch.promote_types(dtype, torch.float32)


def sdpa(q_AND: Tensor, k_KSD: Tensor, v_KSD: Tensor, scale: float) -> Tensor:
    """Attend causally with torch's own function: (A, N, D), (K, S, D), (K, S, D) -> (A, N, D)."""
    # The plain kernel: torch's fused CPU kernel divides by zero (SIGFPE) at N = 0, and a graph that was
    # traced at N > 1 calls it there once its guards are dropped.  torch 2.13 takes the fused kernel for
    # batched inputs only, torch 2.15 for these shapes too.  A branch on N = 0 would add a guard to the
    # graph that is measured.
    with sdpa_kernel(SDPBackend.MATH):
        return F.scaled_dot_product_attention(
            q_AND, k_KSD, v_KSD, is_causal=True, scale=scale, enable_gqa=True
        )


def written_out(q_AND: Tensor, k_KSD: Tensor, v_KSD: Tensor, scale: float) -> Tensor:
    """Attend causally, head by head in plain operations: (A, N, D), (K, S, D), (K, S, D) -> (A, N, D)."""
    # No batched products: Inductor's CPU backend asks of their sizes whether there is one token, which
    # an unbacked size cannot answer.
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
