"""Positions (3, n) of a made-up text with images, as Qwen-VL numbers them, and plain counts.

A text token has the same number on all three axes (time, height, width).  The tokens of an image share
the time of its start, and count height and width from there.  The text after the image goes on behind
the largest of these numbers (transformers, `Qwen3VLModel.get_rope_index`).
"""

from collections.abc import Iterator
from itertools import cycle, islice

import torch
from torch import Tensor

from deepstack_harness.errors import UsageError

# Tokens of text, then the (height, width) of the image behind it, over and over.
LAYOUT = ((3, (2, 3)), (2, (4, 2)), (5, (3, 4)))


def mrope_positions(tokens: int, device: torch.device) -> Tensor:
    """Return positions (3, `tokens`) int64; those of fewer tokens are the start of those of more.

    Raises `UsageError` for a negative count.
    """
    _check(tokens)
    rows = list(islice(_rows(), tokens))
    # A clone: of one token, `contiguous` would keep the strides (1, 3).
    columns = torch.tensor(rows, dtype=torch.int64).reshape(tokens, 3).T
    return columns.clone(memory_format=torch.contiguous_format).to(device)


def counted_positions(tokens: int, device: torch.device) -> Tensor:
    """Return positions (3, `tokens`) int64 of a model with one axis: 0, 1, 2, .. in each row.

    Raises `UsageError` for a negative count.
    """
    _check(tokens)
    return torch.arange(tokens, device=device).repeat(3, 1)


def _check(tokens: int) -> None:
    if tokens < 0:
        raise UsageError(f"there are no positions for {tokens} tokens; ask for 0 or more")


def _rows() -> Iterator[tuple[int, int, int]]:
    start = 0
    for text, (height, width) in cycle(LAYOUT):
        yield from ((at, at, at) for at in range(start, start + text))
        start += text
        yield from ((start, start + y, start + x) for y in range(height) for x in range(width))
        start += max(height, width)
