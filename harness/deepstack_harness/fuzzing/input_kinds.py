"""Kinds of inputs that hunts choose from: payloads, sizes of buffers, wrong shapes.  No torch, no hypothesis.

Each table is short enough that a hunt of a few hundred traces meets every entry.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import cycle, product
from types import MappingProxyType
from typing import Any

from deepstack_harness.contract.case import HIDDEN_ALONE as HIDDEN
from deepstack_harness.contract.trace import DTYPES, LAYOUTS, VALUES

Options = Mapping[str, Any]
"""Options of a `set` step, by the names of `contract.trace.Step`."""


@dataclass(frozen=True)
class BufferSettings:
    """Settings of a trace that stand before its colon; None stands for the usual setting."""

    levels: int | None = None
    hidden: int | None = None
    dtype: str | None = None
    mode: str | None = None
    buffers: int = 1


_INFERENCE = "inference"
USUAL = BufferSettings()
KINDS_ALONE = (
    *[USUAL] * 12,
    *(BufferSettings(levels=levels) for levels in (1, 2, 4)),
    *(BufferSettings(hidden=hidden) for hidden in (1, 1, HIDDEN - 1, HIDDEN + 1)),
    *(BufferSettings(dtype=dtype) for dtype in ("bfloat16", "float16", "bfloat16", "float64")),
    *[BufferSettings(mode=_INFERENCE)] * 2,
    *[BufferSettings(buffers=2)] * 3,
    BufferSettings(levels=1, hidden=1, mode=_INFERENCE),
    BufferSettings(levels=4, hidden=2 * HIDDEN, dtype="bfloat16"),
    BufferSettings(levels=2, dtype="float16", mode=_INFERENCE),
    BufferSettings(hidden=1, buffers=2, mode=_INFERENCE),
)  # fmt: skip
"""Buffers beside which no decoder runs, the usual one first."""
KINDS_BESIDE_DECODER = (*[USUAL] * 3, BufferSettings(mode=_INFERENCE))
"""Buffers beside a decoder that is not compiled: its sizes are those of the family."""
KINDS_COMPILED = (USUAL,)
"""A compiled decoder guards on the mode, so that another one would build graphs of its own."""


def wrong_shapes(levels: int, hidden: int) -> tuple[tuple[int | None, int | None], ...]:
    """Return the (levels, hidden) of payloads that a buffer must refuse: 0 to 2L levels, about H and 2H."""
    wrong_levels = sorted({0, 1, levels - 1, levels + 1, 2 * levels} - {levels})
    wrong_hidden = sorted({1, hidden - 1, hidden + 1, 2 * hidden, 129} - {0, hidden})
    return (*((one, None) for one in wrong_levels), *((None, one) for one in wrong_hidden))


def _payloads() -> Iterator[Options]:
    """Yield each option alone, twice, and then pairs and triples."""
    single: list[Options] = [
        *({"layout": layout} for layout in LAYOUTS),
        *({"dtype": dtype} for dtype in DTYPES),
        *({"values": values} for values in VALUES),
        {"grad": True},
    ]
    yield from single
    yield from single
    dtypes = cycle((None, "float32", None, "bfloat16", None, "float16", None, "float64", None))
    for number, (layout, values) in enumerate(product(LAYOUTS, VALUES)):
        dtype, grad = next(dtypes), number % 5 == 4
        yield {"layout": layout, "values": values, "dtype": dtype, "grad": grad}
    yield from ({"layout": layout, "dtype": dtype} for layout, dtype in product(LAYOUTS, DTYPES))


PAYLOADS: tuple[Options, ...] = tuple(map(MappingProxyType, _payloads()))
"""Payloads as engines make them (`contract.trace.Step`), simple ones first."""
PAYLOADS_BESIDE_DECODER: tuple[Options, ...] = tuple(
    one for one in PAYLOADS if one.get("values") in (None, "constant")
)
"""Those that leave a decoder's output finite, and far from that of a payload of zeros."""
