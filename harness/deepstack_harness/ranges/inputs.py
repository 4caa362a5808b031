"""Masks and ranges that a placeholder is asked about; no torch.

Every mask up to 6 positions with every range, and, drawn from a fixed seed, longer
ones of the kinds that processors make, with the ranges where they begin and end.
"""

import random
from collections.abc import Iterator
from itertools import combinations_with_replacement, product

EXHAUSTIVE = 6
LENGTHS = (17, 64, 501)
SEED = 40143
_ALL_RANGES = 20
_DRAWN_RANGES = 24


def masks() -> Iterator[tuple[str | None, int]]:
    """(mask, length): without a mask, all short masks, then longer ones."""
    for length in range(EXHAUSTIVE + 1):
        yield None, length
        for bits in product("01", repeat=length):
            yield "".join(bits), length
    for length in LENGTHS:
        yield None, length
        for mask in _long(length):
            yield mask, length


def _long(length: int) -> Iterator[str]:
    """Yield all, none, a frame of marks, rows with a break after each, and drawn masks."""
    yield "1" * length
    yield "0" * length
    yield f"0{'1' * (length - 2)}0"
    yield ("1111110" * length)[:length]
    draw = random.Random(SEED + length)
    for share in (0.1, 0.5, 0.9):
        yield "".join("01"[draw.random() < share] for _ in range(length))


def ranges(length: int) -> list[tuple[int, int]]:
    """(start, end) with 0 <= start <= end <= length: all of them up to 20 positions, then a choice."""
    if length <= _ALL_RANGES:
        return list(combinations_with_replacement(range(length + 1), 2))
    edges = [0, 1, length // 2, length - 1, length]
    draw = random.Random(SEED * length)
    drawn = [sorted(int(draw.random() * (length + 1)) for _ in range(2)) for _ in range(_DRAWN_RANGES)]
    return [*combinations_with_replacement(edges, 2), *((start, end) for start, end in drawn)]


def outside(length: int) -> list[tuple[int, int]]:
    """(start, end) that no caller may ask: negative, behind the end, and the wrong way round."""
    return [(-1, length), (0, -1), (0, length + 1), (length + 1, length + 1), (length, 0)]
