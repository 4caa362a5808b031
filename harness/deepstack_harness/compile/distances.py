"""How far two tensors are apart: the one measure of compiled against uncompiled code, whoever judges it.

The limits are those of the judges: `docs/reference/tolerances.md` has them all.
"""

import math

import torch
from torch import Tensor

from deepstack_harness.contract.observation import NOT_FINITE
from deepstack_harness.errors import NotMeasured


def apart(one: Tensor, other: Tensor) -> float:
    """Return the largest absolute difference of two tensors of one shape, in fp64; the order does not matter.

    Equal elements are 0 apart, and so are infinities and NaN in the same place. `NOT_FINITE` is returned for
    NaN or infinity in different places, and for different shapes. This is the comparison of compiled with
    uncompiled code: R0 and I1 to I5 are judged by it, each against a limit of its own.
    """
    if one.shape != other.shape or one.is_complex() != other.is_complex():
        return NOT_FINITE
    if not one.numel():
        return 0.0
    first, second = _wide(one), _wide(other)
    same = (first == second) | (first.isnan() & second.isnan())
    distance = (first - second).abs().masked_fill(same, 0.0).max().item()
    return distance if math.isfinite(distance) else NOT_FINITE


def largest(tensor: Tensor) -> float:
    """Return the largest finite absolute value of a tensor, 0 where it has none."""
    wide = _wide(tensor)
    finite = wide[wide.isfinite()]
    return finite.abs().max().item() if finite.numel() else 0.0


def _wide(tensor: Tensor) -> Tensor:
    """Return the values of a tensor of any layout and dtype, in fp64; raises `NotMeasured` without such."""
    dense = tensor.detach()
    try:
        dense = dense.dequantize() if dense.is_quantized else dense
        dense = dense if dense.layout is torch.strided else dense.to_dense()
        wide = dense.to(torch.complex128 if dense.is_complex() else torch.float64)
    except RuntimeError as error:
        raise NotMeasured(f"the values of a tensor cannot be compared: {error}") from None
    if wide.is_meta:
        raise NotMeasured("a tensor on the device 'meta' has no values to compare")
    return wide
