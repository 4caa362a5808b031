"""Causal attention with grouped queries, in two ways.

Shape letters are those of `harness.families.layers`.
"""

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812  (its usual name)
from torch.nn.attention import SDPBackend, sdpa_kernel


def at_least_fp32(dtype: torch.dtype) -> torch.dtype:
    """What norms, angles and softmax are computed in: fp32, or fp64 where the model is."""
    return torch.promote_types(dtype, torch.float32)


def sdpa(q_AND: Tensor, k_KSD: Tensor, v_KSD: Tensor, scale: float) -> Tensor:
    """Compute causal attention by torch's own function, with its plain kernel; answers (A, N, D).

    Torch's fused CPU kernel divides by zero (SIGFPE) at N = 0, and a graph that was traced at
    N > 1 calls it there once its guards are dropped.  torch 2.13 takes that kernel for batched
    inputs only, torch 2.15 for these shapes too, so the plain kernel is asked for: 2.15 then traces
    what 2.13 does.  A branch on N = 0 would add a guard, and change the graph that is measured.
    """
    with sdpa_kernel(SDPBackend.MATH):
        return F.scaled_dot_product_attention(
            q_AND, k_KSD, v_KSD, is_causal=True, scale=scale, enable_gqa=True
        )


def written_out(q_AND: Tensor, k_KSD: Tensor, v_KSD: Tensor, scale: float) -> Tensor:
    """The same, operation by operation and head by head; answers (A, N, D).

    Plain matrix products only: for batched ones Inductor's CPU backend asks whether
    there is one token, which a size that is unbacked cannot answer.
    """
    token_N = torch.arange(q_AND.size(1), device=q_AND.device)
    later_NS = token_N > token_N[:, None]
    heads = zip(q_AND.chunk(k_KSD.size(0)), k_KSD, v_KSD, strict=True)
    return torch.cat([_one_head(q_GND * scale, k_SD, v_SD, later_NS) for q_GND, k_SD, v_SD in heads])


def _one_head(q_GND: Tensor, k_SD: Tensor, v_SD: Tensor, later_NS: Tensor) -> Tensor:
    """The query heads that share one key and value head; answers (G, N, D)."""
    group = (q_GND.size(0), -1)
    score_GNS = torch.unflatten(q_GND.flatten(0, 1) @ k_SD.T, 0, group).masked_fill(later_NS, -torch.inf)
    share_GNS = score_GNS.softmax(-1, dtype=at_least_fp32(q_GND.dtype)).to(q_GND.dtype)
    return torch.unflatten(share_GNS.flatten(0, 1) @ v_SD, 0, group)
