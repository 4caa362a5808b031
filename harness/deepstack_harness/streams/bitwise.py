"""Equality that rounding, signs of zero and NaN cannot blur."""

import torch
from torch import Tensor

_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def different_bits(one: Tensor, other: Tensor) -> int:
    """Count the elements whose bits differ; all of them where shape or dtype differ."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return max(one.numel(), other.numel())
    integer = _INTEGERS[one.element_size()]
    return int((one.contiguous().view(integer) != other.contiguous().view(integer)).sum())
