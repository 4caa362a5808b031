"""Causal attention with grouped queries, in two ways.

Shape letters are those of `deepstack_harness.families.layers`.
"""

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812  (its usual name)


def at_least_fp32(dtype: torch.dtype) -> torch.dtype:
    """What norms, angles and softmax are computed in: fp32, or fp64 where the model is."""
    return torch.promote_types(dtype, torch.float32)


def sdpa(q_AND: Tensor, k_KSD: Tensor, v_KSD: Tensor, scale: float) -> Tensor:
    """Causal attention by torch's own function; answers (A, N, D).

    Without a batch dimension torch takes its plain kernel.  With one, the fused CPU
    kernel ends up in the compiled graph, and that divides by zero (SIGFPE) at N = 0.
    """
    return F.scaled_dot_product_attention(q_AND, k_KSD, v_KSD, is_causal=True, scale=scale, enable_gqa=True)


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
