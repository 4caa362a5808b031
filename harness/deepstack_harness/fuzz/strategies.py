"""hypothesis strategies over token counts, paddings, steps, traces, requests and schedules; no torch.

For a user's own tests too: `@given(traces(capacity=16))`.  Counts are drawn where
buffers broke, which `lineage.md` and the issues it names tell: 0, 1, 2, capture
sizes and the capacity with their neighbours, multiples of the sequence-parallel
size, and the pairs (tokens set, tokens asked for) of the reported crashes.

Kinds of inputs that hunts choose from: payloads, sizes of buffers, wrong shapes.  No torch, no hypothesis.

Each table is short enough that a hunt of a few hundred traces meets every entry.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import cycle, product
from types import MappingProxyType
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from deepstack_harness.catalogue.workload import (
    CAPTURE_SIZES,
    Request,
    ScheduledStep,
    pad_to_capture,
    pad_to_multiple,
    schedule,
)
from deepstack_harness.contract.case import HIDDEN_ALONE as HIDDEN
from deepstack_harness.contract.trace import (
    DTYPES,
    INTEGERS,
    LAYOUTS,
    MAY_BE_NEGATIVE,
    VALUES,
    Op,
    Step,
    Trace,
)

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
    *(BufferSettings(levels=levels) for levels in (1, 2, 4, 8)),
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
    """Return the (levels, hidden) of payloads that a buffer must refuse: 0 to 2L levels, about H and 2H.

    Of the last two both are wrong, and of one of them the product is right.
    """
    wrong_levels = sorted({0, 1, levels - 1, levels + 1, 2 * levels} - {levels})
    wrong_hidden = sorted({1, hidden - 1, hidden + 1, 2 * hidden, 129} - {0, hidden})
    both = {(levels + 1, hidden + 1), (2 * levels, hidden // 2) if hidden % 2 == 0 else (hidden, levels)}
    return (
        *((count, None) for count in wrong_levels),
        *((None, size) for size in wrong_hidden),
        *sorted(both - {(levels, hidden)}),
    )


def _payloads() -> Iterator[Options]:
    """Yield each option alone, twice, and then pairs and triples."""
    single: list[Options] = [
        *({"layout": layout} for layout in LAYOUTS),
        *({"dtype": dtype} for dtype in DTYPES),
        *({"values": values} for values in VALUES),
        *({"dtype": dtype} for dtype in INTEGERS),
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
    payload
    for payload in PAYLOADS
    if payload.get("values") in (None, "constant") and payload.get("dtype") not in INTEGERS
)
"""Those that leave a decoder's output finite, and far from that of a payload of zeros."""


REPORTED_PAIRS = ((9, 16), (11, 16), (14, 16), (76, 80), (309, 320), (329, 336), (479, 480))
"""(N, P) of the crashes of vLLM 41485, 40932 and 41697: padding to the next capture size."""

CAPACITIES = (16, 16, 16, 16, 16, 16, 1, 2, 4, 7, 13, 15, 17, 20, 24, 33, 80)
"""Rows of buffers to draw from: 1, 2, primes, powers of two and their neighbours, those of reported crashes.

Small ones most of all, because every row is read after every step.
"""

SHAPE_FAULTS = (
    (2, None), (4, None), (0, None), (1, None), (6, None),
    (None, 1), (None, 7), (None, 127), (None, 129), (None, 256),
)  # fmt: skip
"""(levels, hidden) of payloads that a buffer of 3 levels and hidden size 8 or 128 must refuse."""


@cache
def breaking_counts(capacity: int, ranks: int = 1) -> tuple[int, ...]:
    """Return the counts in [0, capacity] where things break, in order; `ranks` share a step."""
    centres = {*CAPTURE_SIZES, *range(ranks, capacity + 1, ranks)} if ranks > 1 else set(CAPTURE_SIZES)
    near = {centre + offset for centre in (*centres, capacity) for offset in (-1, 0, 1)}
    reported = {count for pair in REPORTED_PAIRS for count in pair}
    return tuple(sorted(count for count in {0, 1, 2} | near | reported if 0 <= count <= capacity))


@cache
def growing_counts(capacity: int, ranks: int = 2) -> tuple[int, ...]:
    """Return counts above the capacity.

    They are its neighbour, the next capture size, the next multiple of ranks, and half more.
    """
    above = (capacity + 1, pad_to_capture(capacity + 1), pad_to_multiple(capacity + 1, ranks))
    return tuple(sorted({*above, capacity + 4, capacity * 3 // 2 + 1}))


def refused_counts(capacity: int) -> tuple[int, ...]:
    """Return negative counts, -1 first: those that Python would take for counts from the end, and lower."""
    return (-1, *sorted({-2, -7, -capacity, -capacity - 1, -8 * capacity} - {-1}, reverse=True))


def token_counts(capacity: int, ranks: int = 1) -> SearchStrategy[int]:
    """Return the strategy of a step's tokens in [0, capacity]: half where buffers broke, half anywhere."""
    return st.one_of(_drawn_from(breaking_counts(capacity, ranks)), _drawn_from(range(capacity + 1)))


def _drawn_from(counts: Sequence[int]) -> SearchStrategy[int]:
    # Not sampled_from(counts): hypothesis mixes integers of 100 and more, which it finds in the source of
    # loaded modules, into ranges of that size, so that another installation would draw other counts.
    digits = st.tuples(st.integers(0, 63), st.integers(0, 63))
    return digits.map(lambda pair: counts[(64 * pair[0] + pair[1]) * len(counts) // 4096])


def paddings(tokens: int, capacity: int, ranks: int = 1) -> tuple[int, ...]:
    """Return every P in [tokens, ..] that an engine may ask for, in order.

    P is unpadded, a capture size, a multiple of ranks or the largest.  The largest stands for a data-parallel
    group: each rank takes the maximum over all ranks.
    """
    shared = pad_to_multiple(tokens, ranks)
    return tuple(sorted({tokens, pad_to_capture(tokens), shared, max(tokens, capacity)}))


def padded(tokens: int, capacity: int, ranks: int = 1) -> SearchStrategy[int]:
    """Draw from `paddings`."""
    return st.sampled_from(paddings(tokens, capacity, ranks))


def pairs(capacity: int, ranks: int = 1) -> SearchStrategy[tuple[int, int]]:
    """Draw (N, P) of one step: a reported pair that fits, or one that is padded as engines do."""
    reported = [pair for pair in REPORTED_PAIRS if pair[1] <= capacity]
    drawn = token_counts(capacity, ranks).flatmap(
        lambda tokens: padded(tokens, capacity, ranks).map(lambda wanted: (tokens, wanted))
    )
    return st.one_of(st.sampled_from(reported), drawn) if reported else drawn


@st.composite
def spans(draw: DrawFn, tokens: int) -> tuple[tuple[int, int], ...]:
    """Draw one or two ranges of visual tokens within [0, tokens), in order and apart; `tokens` >= 1."""
    size = 4 if tokens > 2 and draw(st.booleans()) else 2
    edges = sorted(draw(st.lists(st.integers(0, tokens), unique=True, min_size=size, max_size=size)))
    return tuple(zip(edges[::2], edges[1::2], strict=True))


@st.composite
def sets(draw: DrawFn, capacity: int, ranks: int = 1, *, bad: bool = False) -> Step:
    """Draw a `set`, sometimes above the capacity, or with a payload as engines make them.

    With `bad` also of a wrong shape.
    """
    counts = st.one_of(
        token_counts(capacity, ranks), st.sampled_from(growing_counts(capacity, max(2, ranks)))
    )
    tokens = draw(counts)
    if bad and draw(st.integers(0, 3)) == 0:
        return Step(Op.SET, tokens, *draw(st.sampled_from(SHAPE_FAULTS)))
    made = draw(st.sampled_from(PAYLOADS)) if draw(st.integers(0, 2)) == 0 else {}
    drawn_spans = draw(spans(tokens)) if tokens and draw(st.integers(0, 4)) == 0 else None
    return Step(Op.SET, tokens, spans=drawn_spans, **made)


def steps(capacity: int, ranks: int = 1, *, bad: bool = True) -> SearchStrategy[Step]:
    """Draw any step of a buffer alone; with `bad` also negative counts and payloads of a wrong shape."""
    counts = st.one_of(
        token_counts(capacity, ranks), st.sampled_from(growing_counts(capacity, max(2, ranks)))
    )
    plain = (Op.GET, Op.CLEAR, Op.RESIZE, Op.FORWARD, Op.PROFILE)
    drawn = st.builds(Step, st.sampled_from(plain), counts)
    refusing = st.sampled_from(sorted(MAY_BE_NEGATIVE))
    refused = [st.builds(Step, refusing, st.sampled_from(refused_counts(capacity)))] if bad else []
    return st.one_of(sets(capacity, ranks, bad=bad), drawn, drawn, *refused)


def traces(
    capacity: int = 16, ranks: int = 1, *, bad: bool = True, max_steps: int = 8
) -> SearchStrategy[Trace]:
    """Draw traces on a buffer of `capacity` rows; all rows are read at the start and after each step."""
    drawn = st.lists(steps(capacity, ranks, bad=bad), min_size=1, max_size=max_steps)
    return drawn.map(lambda steps_: Trace(capacity, tuple(with_reads(capacity, steps_))))


def with_reads(capacity: int, unread: Sequence[Step]) -> Iterator[Step]:
    """Yield the steps, with a `get` of all rows before the first and after each."""
    yield Step(Op.GET, capacity)
    for step in unread:
        yield step
        yield Step(Op.GET, capacity)


@st.composite
def engine_traces(draw: DrawFn, capacity: int = 16, ranks: int = 1, max_steps: int = 6) -> Trace:
    """Draw a correct engine's trace: a profile run, then steps of `set N; forward P` or of text alone."""
    done = [Step(Op.PROFILE, capacity)]
    for tokens, wanted in draw(st.lists(pairs(capacity, ranks), min_size=1, max_size=max_steps)):
        done += [Step(Op.SET, tokens)] if tokens and draw(st.booleans()) else []
        done.append(Step(Op.FORWARD, wanted))
    return Trace(capacity, tuple(done))


@st.composite
def requests(draw: DrawFn, max_requests: int = 4) -> list[Request]:
    """Draw prompts with 0 to 2 images of 28 to 140 pixels a side, text, and answers."""
    sides = st.integers(28, 140)
    images = st.lists(st.tuples(sides, sides), max_size=2).map(tuple)
    made = st.tuples(images, st.integers(1, 40), st.integers(0, 6))
    drawn = draw(st.lists(made, min_size=1, max_size=max_requests))
    return [Request(f"r{number}", *parts) for number, parts in enumerate(drawn, 1)]


@st.composite
def schedules(draw: DrawFn, budget: int = 16, slots: int = 3) -> list[ScheduledStep]:
    """Draw chunked prefill of drawn requests: steps of at most `budget` tokens and `slots` requests."""
    return schedule(draw(requests()), draw(st.integers(1, budget)), draw(st.integers(1, slots)))
