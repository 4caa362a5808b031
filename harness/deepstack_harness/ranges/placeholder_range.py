"""Placeholder ranges of our own, as vLLM's `PlaceholderRange` (vllm/multimodal/inputs.py) means them.

A multimodal item takes `length` positions of a prompt from `offset` on; a boolean
mask `is_embed` (length,) says which of them receive an embedding, None means all.

The contract: `get_num_embeds()` counts the positions that do, and
`get_embeds_indices_in_range(start, end)` counts those before `start` and before
`end`, for 0 <= start <= end <= length.  Other arguments are the caller's mistake:
they raise, and never answer.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from torch import Tensor


class PlaceholderRange(Protocol):
    """The part of vLLM's class that a scheduler asks."""

    @property
    def offset(self) -> int:
        """The first position in the prompt."""
        ...

    @property
    def length(self) -> int:
        """Positions that it takes."""
        ...

    def get_num_embeds(self) -> int:
        """Count its positions that receive an embedding."""
        ...

    def get_embeds_indices_in_range(self, start_idx: int, end_idx: int, /) -> tuple[int, int]:
        """Return the first and the one behind the last embedding of positions [start_idx, end_idx)."""
        ...


KEPT = "embeds_cumsum"
"""Where vLLM's class and ours keep the cumulative sum, None without a mask."""

MakeRange = Callable[[int, int, Tensor | None], PlaceholderRange]
"""How one is made: offset, length, and `is_embed` or None."""


@dataclass(frozen=True)
class _Span:
    """Span of a placeholder; `is_embed` is boolean, of shape (length,)."""

    offset: int
    length: int
    is_embed: Tensor | None = None


class TensorRange(_Span):
    """Up to vLLM 0.19.1, its two faults mended: the cumulative sum stays a tensor, indexed at every call."""

    @cached_property
    def embeds_cumsum(self) -> Tensor | None:
        """Embeddings up to each position, that one included: int64 (length,)."""
        return None if self.is_embed is None else self.is_embed.cumsum(dim=0)

    def get_num_embeds(self) -> int:
        """See `PlaceholderRange`."""
        if self.embeds_cumsum is None:
            return self.length
        # Not asked of the tensor: that would be a call into torch more than vLLM 0.19.1 makes.
        return int(self.embeds_cumsum[-1]) if self.length else 0

    def get_embeds_indices_in_range(self, start_idx: int, end_idx: int) -> tuple[int, int]:
        """See `PlaceholderRange`."""
        if self.embeds_cumsum is None:
            return start_idx, end_idx
        start = int(self.embeds_cumsum[start_idx - 1]) if start_idx > 0 else 0
        end = int(self.embeds_cumsum[end_idx - 1]) if end_idx > 0 else 0
        return start, end


class ListRange(_Span):
    """From vLLM 0.20.0 on (#40143): the cumulative sum becomes a Python list, once."""

    @cached_property
    def embeds_cumsum(self) -> list[int] | None:
        """Embeddings up to each position, that one included."""
        return None if self.is_embed is None else self.is_embed.cumsum(dim=0).tolist()

    def get_num_embeds(self) -> int:
        """See `PlaceholderRange`."""
        if self.embeds_cumsum is None:
            return self.length
        return self.embeds_cumsum[-1] if self.embeds_cumsum else 0

    def get_embeds_indices_in_range(self, start_idx: int, end_idx: int) -> tuple[int, int]:
        """See `PlaceholderRange`."""
        if self.embeds_cumsum is None:
            return start_idx, end_idx
        start = self.embeds_cumsum[start_idx - 1] if start_idx > 0 else 0
        end = self.embeds_cumsum[end_idx - 1] if end_idx > 0 else 0
        return start, end


class ReferenceRange(ListRange):
    """Range that keeps the whole contract: arguments outside the placeholder raise `IndexError`."""

    def get_embeds_indices_in_range(self, start_idx: int, end_idx: int) -> tuple[int, int]:
        """See `PlaceholderRange`."""
        if not 0 <= start_idx <= end_idx <= self.length:
            raise IndexError(
                f"range [{start_idx}, {end_idx}) lies outside a placeholder of {self.length} positions: "
                "0 <= start <= end <= length"
            )
        return super().get_embeds_indices_in_range(start_idx, end_idx)
