"""What the regions of this folder have in common: the calls, and what their caller says of rows and parts."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

H = 8
"""Width of all hidden states."""

Steps = list[Any]
"""Steps of `compile_steps`: dicts of keyword arguments, and functions that change the region."""


class RegionProgram(nn.Module):
    """A region with its steps.

    `promise` is the one that a mutant breaks under each of its `arms`, "" for a right region, which states
    `right`.  `neutral`, `live` and `split` are those of `compile_steps`; `unasked` names those of its base
    that do not fit it, such as parts of a call that a region may not be given.
    """

    promise: ClassVar[str] = ""
    arms: ClassVar[str] = "eager/drop_all"
    warm_up: ClassVar[int] = 1
    neutral: ClassVar[Callable[..., Sequence[Tensor]] | None] = None
    live: ClassVar[Callable[..., object] | None] = None
    split: ClassVar[Callable[..., Sequence[dict[str, Any]]] | None] = None
    unasked: ClassVar[str] = ""

    @classmethod
    def make(cls) -> tuple[Callable[..., object], Steps]:
        """Return the region and its steps, equal each time."""
        torch.manual_seed(0)
        return cls(), cls.steps()

    @classmethod
    def steps(cls) -> Steps:
        """Return the calls, the first of which are the warm-up, and changes of the region between them."""
        raise NotImplementedError


def rows(count: int, seed: int = 0, width: int = H) -> Tensor:
    """Return hidden states (count, width) float32."""
    return torch.randn(count, width, generator=torch.Generator().manual_seed(1000 * seed + count))


def at(*numbers: int) -> Tensor:
    """Return indices (n,) int64."""
    return torch.tensor(numbers)


def halves(*, count: int, **arguments: Any) -> list[dict[str, Any]]:
    """Return two micro-batches of arguments that have `count` rows; all other arguments go to both."""
    middle = count // 2
    return [
        {
            name: value[part] if isinstance(value, Tensor) and value.shape[:1] == (count,) else value
            for name, value in arguments.items()
        }
        for part in (slice(0, middle), slice(middle, count))
    ]
