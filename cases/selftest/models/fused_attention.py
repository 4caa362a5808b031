"""A call that ends its process at 0 tokens; called by name in a worker."""

import torch


def run(tokens: int) -> list[int]:
    """Call torch's fused CPU attention as a compiled graph calls it; return the shape of the output."""
    rows = torch.ones(1, 4, tokens, 32)
    out, _ = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(rows, rows, rows, is_causal=True)
    return list(out.shape)
