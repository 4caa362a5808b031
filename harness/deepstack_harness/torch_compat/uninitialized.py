"""Fill memory that nobody has written with NaN, so that reading it shows at every run.

A fresh page of memory is zero by accident, which hides a `torch.empty` that should be a `torch.zeros`.
torch fills `empty`, `empty_like`, `new_empty` and `resize_` under deterministic algorithms
(`torch.utils.deterministic.fill_uninitialized_memory`).
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def filled_with_nan() -> Iterator[None]:
    """Fill new memory with NaN (integers: the largest value) while open; threads of this process share it."""
    enabled = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    fills = torch._C._get_deterministic_fill_uninitialized_memory()
    # `torch.use_deterministic_algorithms` would import Inductor's settings, and change them.
    torch._C._set_deterministic_algorithms(True, warn_only=True)
    torch._C._set_deterministic_fill_uninitialized_memory(True)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*deterministic")
            yield
    finally:
        torch._C._set_deterministic_fill_uninitialized_memory(fills)
        torch._C._set_deterministic_algorithms(enabled, warn_only=warn_only)
