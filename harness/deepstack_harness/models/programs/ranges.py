"""Ranges of a prompt, of which a mask marks the embeddings."""

import itertools
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor


class SmallPlaceholder:
    """Some positions of a prompt; the mask `is_embed` has those of them that receive an embedding."""

    def __init__(self, is_embed: Tensor) -> None:
        self.length = len(is_embed)
        self.embeds_cumsum = is_embed.cumsum(dim=0)

    def get_num_embeds(self) -> int:
        return self.before(self.length)

    def get_embeds_indices_in_range(self, start: int, end: int) -> tuple[int, int]:
        return self.before(start) if start > 0 else 0, self.before(end)

    def before(self, end: int) -> int:
        sums = self.embeds_cumsum
        return int(sums[end - 1]) if end > 0 else 0


def result(call: Callable[..., object], *arguments: int) -> object:
    try:
        return call(*arguments)
    except IndexError as error:
        return f"IndexError: {error}"


def wrong_ranges(bits: Sequence[int]) -> Iterator[str]:
    mask = f"mask {''.join(map(str, bits)) or 'empty'}"  # against counting one by one
    placeholder = SmallPlaceholder(torch.tensor(bits, dtype=torch.bool))
    embeds = result(placeholder.get_num_embeds)
    if embeds != sum(bits):
        yield f"{mask}: get_num_embeds() gives {embeds}, {sum(bits)} is right"
    for start, end in itertools.combinations_with_replacement(range(len(bits) + 1), 2):
        found = result(placeholder.get_embeds_indices_in_range, start, end)
        right = sum(bits[:start]), sum(bits[:end])
        if found != right:
            yield f"{mask}, start {start}, end {end}: gives {found}, {right} is right"


def placeholder_ranges() -> list[str]:
    masks = (bits for length in range(3) for bits in itertools.product((0, 1), repeat=length))
    return [found for bits in masks for found in wrong_ranges(bits)]
