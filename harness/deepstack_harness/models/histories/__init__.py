"""Faults of engines as small programs: a region, the calls it gets, and how a right twin of it is called.

Each public function is one program. It returns a callable and its steps: a step is a tuple of positional
arguments, a dict of keyword ones, or a function of the region that runs between two calls. A third member,
where there is one, holds keywords of `deepstack_harness.compile_steps`. The docstring of a wrong one states
after `Fault:` what is wrong, and its line is marked.

They need nothing but torch: the program that an incident gives out is made of their source.

Private: what is public is imported from `deepstack_harness` itself.
"""

from collections.abc import Callable

import torch
from torch import Tensor

Program = tuple[Callable[..., object], list[object]]
SplitProgram = tuple[Callable[..., object], list[object], dict[str, object]]
"""A program with further keywords."""
H = 8
"""Hidden size of all programs."""


def drawn(*sizes: int, seed: int = 0) -> Tensor:
    """Return float32 numbers of the given sizes, the same for a seed."""
    return torch.randn(sizes, generator=torch.Generator().manual_seed(seed))


def filled(buffer: Tensor, value: Tensor) -> Callable[[object], object]:
    """Return a step that writes a value into a buffer of the caller."""
    return lambda _region: buffer.copy_(value)
