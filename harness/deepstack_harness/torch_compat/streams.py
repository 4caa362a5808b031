"""Delays on CUDA streams; read in torch 2.13."""

import torch


def spin(cycles: int) -> None:
    """Keep the current CUDA stream busy for as many clock cycles."""
    torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]
