"""Writer of traces: lifecycles as engines have them, and calls in any order, from phrases of small numbers.

Counts are chosen where buffers broke, which `lineage.md` and the issues it names list: 0, 1, 2, capture sizes
and the capacity with their neighbours, and the pairs (tokens set, tokens read) of the reported crashes. The
tables are short enough that a hunt of a few hundred traces plays every entry. No torch, no hypothesis.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import cycle, product
from types import MappingProxyType
from typing import Any

from deepstack_harness.catalogue.workload import CAPTURE_SIZES, pad_to_capture, pad_to_multiple
from deepstack_harness.contract.case import HIDDEN_ALONE, LEVELS_ALONE
from deepstack_harness.contract.trace import (
    CALLS_BUFFER,
    DTYPES,
    INTEGERS,
    LAYOUTS,
    MAY_BE_NEGATIVE,
    SECOND,
    SHAPES,
    VALUES,
    Op,
    Step,
    Trace,
)

Options = Mapping[str, Any]
"""Settings of a `Trace` or options of a `set`, by the names of their fields; the usual ones are left out."""

USUAL: Options = {}
_INFERENCE = {"mode": "inference"}
KINDS_ALONE: tuple[Options, ...] = (
    *[USUAL] * 12,
    *({"levels": levels} for levels in (1, 2, 4, 8)),
    *({"hidden": hidden} for hidden in (1, 1, HIDDEN_ALONE - 1, HIDDEN_ALONE + 1)),
    *({"dtype": dtype} for dtype in ("bfloat16", "float16", "bfloat16", "float64")),
    *[_INFERENCE] * 2,
    *[{"buffers": 2}] * 3,
    {"levels": 1, "hidden": 1, **_INFERENCE},
    {"levels": 4, "hidden": 2 * HIDDEN_ALONE, "dtype": "bfloat16"},
    {"levels": 2, "dtype": "float16", **_INFERENCE},
    {"hidden": 1, "buffers": 2, **_INFERENCE},
)  # fmt: skip
"""Settings of buffers that no decoder reads, the usual one first."""
KINDS_WITH_DECODER: tuple[Options, ...] = (*[USUAL] * 3, _INFERENCE)
"""Those next to a decoder that is not compiled: its sizes are those of the family."""
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
    """Yield each single option, twice, and then pairs and triples."""
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
PAYLOADS_WITH_DECODER: tuple[Options, ...] = tuple(
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
def breaking_counts(capacity: int) -> tuple[int, ...]:
    """Return the counts in [0, capacity] where things break, in order."""
    near = {centre + offset for centre in (*CAPTURE_SIZES, capacity) for offset in (-1, 0, 1)}
    reported = {count for pair in REPORTED_PAIRS for count in pair}
    return tuple(sorted(count for count in {0, 1, 2} | near | reported if 0 <= count <= capacity))


@cache
def growing_counts(capacity: int, ranks: int = 2) -> tuple[int, ...]:
    """Return counts above the capacity.

    They are its neighbour, the next capture size, the next multiple of ranks, and half more.
    """
    above = (capacity + 1, pad_to_capture(capacity + 1), pad_to_multiple(capacity + 1, ranks))
    return tuple(sorted({*above, capacity + 4, capacity * 3 // 2 + 1}))


def paddings(tokens: int, capacity: int, ranks: int = 1) -> tuple[int, ...]:
    """Return every P in [tokens, ..] that an engine may pass to get, in order.

    P is unpadded, a capture size, a multiple of ranks or the largest. The largest is that of a data-parallel
    group: each rank takes the maximum over all ranks.
    """
    shared = pad_to_multiple(tokens, ranks)
    return tuple(sorted({tokens, pad_to_capture(tokens), shared, max(tokens, capacity)}))


_RANKS = (1, 2, 4, 8)
"""Ranks of which a drawn count of tokens may be padded to a multiple."""
_GROWTH = 4
"""A buffer grows to a few times the rows that it was made with; every row is read after every step."""
_FAR = 8
"""Times the rows of a small buffer, for calls far above its capacity."""
_SELDOM = 24
"""One of so many calls above the rows is far above: rows that are many are read slowly."""
_SMALL = 20
"""Rows of a buffer that is small enough to grow far."""
_ENDS_PAYLOAD = frozenset({Op.CLEAR, Op.FORWARD, Op.PROFILE, Op.CAPTURE, Op.REPLAY})


@dataclass
class _Model:
    """Model of one buffer: its rows, N of the payload that is there, and N of the one before.

    It assumes that the buffer grows whenever it may.
    """

    rows: int
    tokens: int = 0
    before: int = 0

    def follow(self, step: Step) -> None:
        """Note a step; one that the buffer has to refuse, or may, changes nothing."""
        count = step.tokens
        misshapen = (step.levels, step.hidden, step.shape) != (None, None, None)
        if step.fail is not None or (step.op is Op.SET and misshapen):
            return
        if step.op is Op.SET:
            self.before, self.tokens = self.tokens, count
        elif step.op in _ENDS_PAYLOAD and count >= 0:
            self.before, self.tokens = self.tokens or self.before, 0
        elif step.op is Op.RESIZE and count >= max(1, self.tokens):
            self.rows = count
        if step.op is not Op.CLEAR:
            self.rows = max(self.rows, count)


@dataclass
class TraceWriter:
    """Steps on buffers of `made` rows; `on` is the buffer that the next calls are on.

    `alone` is true where no decoder reads the buffer, whose usual hidden size is `hidden` then.
    """

    made: int
    alone: bool = True
    hidden: int = HIDDEN_ALONE
    kind: Options = field(default_factory=dict)
    on: str | None = None
    steps: list[Step] = field(default_factory=list)
    captured: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        """Begin with empty buffers."""
        self._models = {name: _Model(self.made) for name in (None, SECOND)[: self.kind.get("buffers", 1)]}

    @property
    def trace(self) -> Trace:
        """Return the trace; where no step was written, a read."""
        return Trace(self.made, tuple(self.steps) or (Step(Op.GET, self.made),), **self.kind)

    @property
    def rows(self) -> int:
        """Rows of the buffer that the next calls are on."""
        return self._models[self.on].rows

    @property
    def tokens(self) -> int:
        """N of the payload in that buffer; 0 without one."""
        return self._models[self.on].tokens

    @property
    def levels(self) -> int:
        """Levels of a buffer without a decoder."""
        levels: int = self.kind.get("levels", LEVELS_ALONE)
        return levels

    @property
    def wrong_shapes(self) -> tuple[tuple[int | None, int | None], ...]:
        """The (levels, hidden) of payloads that the buffer must refuse."""
        return wrong_shapes(self.levels, self.kind.get("hidden", self.hidden)) if self.alone else SHAPE_FAULTS

    def begin(self, *, compiled: bool, captured: bool, usual: bool) -> None:
        """Begin as engines do: profile before anything is compiled, then capture, the largest size first.

        Not `usual` is one captured graph, or a first step that is no read.
        """
        if compiled or (usual and not self.alone):
            self.append(Step(Op.PROFILE, self.made))
        if captured:
            sizes = {self.made, self.made // 2, self.made // 4, 1} - {0} if usual else {self.made}
            for size in sorted(sizes, reverse=True):
                self.append(Step(Op.CAPTURE, size))
        elif usual:
            self.append(Step(Op.GET, self.made))

    def write(self, kind: str, reads: int, second: bool, picks: Iterable[tuple[int, int]]) -> None:
        """Write steps of a kind, whose counts pairs of numbers choose; the model follows each step.

        `reads` (0 to 7) chooses how rows are read after them. With `second` the steps are on the second
        buffer, where there is one.
        """
        self.on = SECOND if second and len(self._models) > 1 else None
        for pair in picks:
            for step in _STEPS[kind](self, *pair):
                self.append(step)
                if reads > 1:
                    self.read(self.made if reads == 7 else self.rows)
        if reads == 1 and self.steps:
            self.read(self.rows)

    def append(self, step: Step) -> None:
        """Append one step; a call is on the buffer `on`, a run of the decoder on the first."""
        on = self.on if step.op in CALLS_BUFFER else None
        self._models[on].follow(step)
        if step.op is Op.CAPTURE:
            self.captured.add(step.tokens)
        self.steps.append(replace(step, on=on) if on else step)

    def read(self, rows: int) -> None:
        """Read so many rows, and all rows of the other buffer, unless the step before has read them."""
        for name, model in self._models.items():
            count = rows if name == self.on else model.rows
            last = self.steps[-1] if self.steps else None
            if last is None or last.op is not Op.GET or last.on != name or last.tokens < count:
                self.steps.append(Step(Op.GET, count, on=name))
                model.follow(self.steps[-1])

    def fitting(self, pick: int) -> int:
        """Return a count in [0, rows]: near the sizes in the buffer, where buffers broke, or any."""
        model = self._models[self.on]
        rows, live, before = model.rows, model.tokens, model.before
        named = (
            1, live, rows, live + 1, live - 1, rows - 1, 2, before, before - 1, before + 1,
            live // 2, rows // 2, self.made, self.made - 1, 0, 0,
        )  # fmt: skip
        if pick < len(named):
            return min(max(0, named[pick]), rows)
        counts = breaking_counts(rows) if pick % 2 else range(rows + 1)
        return counts[pick // 2 * 7 % len(counts)]

    def above(self, pick: int) -> int:
        """Return a count above the rows; a fitting one where the buffer has grown enough."""
        if self.rows > _GROWTH * self.made:
            return self.fitting(pick)
        counts = growing_counts(self.rows)
        if pick % _SELDOM == _SELDOM - 1 and self.made <= _SMALL:
            return _FAR * self.made + 1
        return counts[pick % len(counts)]

    def padded(self, pick: int) -> int:
        """Return P for N as an engine pads it; any count for text, or where no decoder runs."""
        tokens = self._models[None].tokens
        if not tokens or (self.alone and pick % 5 == 0):
            return self.fitting(pick)
        wanted = paddings(tokens, self._models[None].rows, _RANKS[pick // 5 % len(_RANKS)])
        return wanted[pick % len(wanted)]


PICKS = 96
"""Numbers to pick from. hypothesis repeats itself: where there are two numbers, both choose from a table."""
Phrase = tuple[str, int, bool, Sequence[tuple[int, int]]]
"""Arguments of `TraceWriter.write`."""
_REFUSING = sorted(MAY_BE_NEGATIVE)
_GETS = (2, 4, 9, 64)
"""Lengths of runs of gets; few are long, because every output is compared."""
_MANY = 2500
"""Calls of a long run; their outputs are only compared with the first one."""
_SECONDS = (90, 86_400)
"""Seconds by which the clock moves on: above timeouts of a minute, and of less than a day."""


def _unusual(writer: TraceWriter, first: int, second: int) -> Iterator[Step]:
    """Set a payload as engines make them: its layout in memory, its dtype, its values."""
    payloads = PAYLOADS if writer.alone else PAYLOADS_WITH_DECODER
    tokens = writer.above(first) if first % 8 == 7 else max(1, writer.fitting(first))
    payload = payloads[(first + second) % len(payloads)]
    if payload.get("values") == "reordered":
        tokens = writer.tokens or tokens  # the rows of a payload of the same size in another order
    yield Step(Op.SET, tokens, **payload)


def _gets(writer: TraceWriter, first: int, second: int) -> Iterator[Step]:
    """Read a payload that may be there often, or late."""
    read = Step(Op.GET, writer.fitting(first))
    kind, length = divmod(second, len(_GETS))
    yield read  # what an earlier call did wrong shows here
    match kind % 6:
        case 0:
            yield replace(read, calls=_MANY)
        case 1:
            yield replace(read, after=_SECONDS[length % len(_SECONDS)])
        case _:
            yield from [read] * _GETS[length]


def _misshapen(writer: TraceWriter, first: int, second: int) -> Iterator[Step]:
    tokens = writer.above(first) if first % 4 == 3 else writer.fitting(first)
    sizes = writer.wrong_shapes
    kind = (first + second) % (len(sizes) + len(SHAPES))
    if kind < len(sizes):
        yield Step(Op.SET, tokens, *sizes[kind])
    else:
        yield Step(Op.SET, max(1, tokens), shape=SHAPES[kind - len(sizes)])


def _spans(writer: TraceWriter, first: int, second: int) -> Iterator[Step]:
    """Set a payload of one span of visual tokens, or of several with equal gaps."""
    tokens = max(1, writer.fitting(first))
    start, length = second % tokens, 1 + second // 2 % 5
    if second % 2:
        starts = range(start, tokens, 2 * length)
        yield Step(Op.SET, tokens, spans=tuple((begin, min(begin + length, tokens)) for begin in starts))
    else:
        yield Step(Op.SET, tokens, spans=((start, start + 1 + second // 2 % (tokens - start)),))


def _resize(writer: TraceWriter, first: int, second: int) -> Iterator[Step]:
    """Resize around a payload that is there, or was cleared just now."""
    if not writer.tokens:
        yield Step(Op.SET, max(1, writer.fitting(second)))
    live = writer.tokens
    if second % 2:
        yield Step(Op.CLEAR, live)
    near = (live, live - 1, live + 1, writer.rows - 1, writer.fitting(second))
    yield Step(Op.RESIZE, writer.above(first) if first % 3 == 2 else max(0, near[first // 3 % len(near)]))


def _out_of_memory(writer: TraceWriter, first: int, second: int) -> Iterator[Step]:
    """Let an allocation fail while a buffer grows, and read the payload that it had."""
    if not writer.tokens:
        yield Step(Op.SET, max(1, writer.fitting(second)))
    live = writer.tokens
    op = (Op.SET, Op.GET, Op.RESIZE)[first % 3]
    yield Step(op, writer.above(first // 3), fail=1 + second % (2 * writer.levels + 1))
    yield Step(Op.GET, live)


def _micro_batch(writer: TraceWriter, first: int, _: int) -> Iterator[Step]:
    tokens = writer.fitting(first)
    yield Step(Op.GET, tokens)
    yield Step(Op.CLEAR, tokens)


def _step(writer: TraceWriter, first: int, second: int) -> Iterator[Step]:
    """Schedule one step: a visual one sets and runs, one of only text runs."""
    writer.on = None
    if second % 4 != 3:
        yield Step(Op.SET, writer.fitting(first))
    yield Step(Op.FORWARD, writer.padded(second))


def _capture(writer: TraceWriter, first: int, _: int) -> Iterator[Step]:
    """Capture another size, for a payload that may be there."""
    counts = [tokens for tokens in breaking_counts(writer.rows) if tokens >= max(1, writer.tokens)]
    yield Step(Op.CAPTURE, counts[first % len(counts)])


def _replay(writer: TraceWriter, first: int, second: int) -> Iterator[Step]:
    """Replay a graph that was captured, after a payload that fits it or as text."""
    sizes = sorted(tokens for tokens in writer.captured if tokens >= writer.tokens)
    if sizes:
        tokens = sizes[-1 - first % len(sizes)]
        if second % 4 != 3:
            yield Step(Op.SET, (tokens, max(0, tokens - 1), second // 4 % (tokens + 1))[second % 3])
        yield Step(Op.REPLAY, tokens)


def _refused(writer: TraceWriter, first: int, second: int) -> Iterator[Step]:
    """Call with a negative count: those that Python would take for counts from the end, and lower ones."""
    rows = writer.rows
    counts = (-1, *sorted({-2, -7, -rows, -rows - 1, -8 * rows} - {-1}, reverse=True))
    yield Step(_REFUSING[first % len(_REFUSING)], counts[second % len(counts)])


_Steps = Callable[[TraceWriter, int, int], Iterable[Step]]


def _call(op: Op, count: Callable[[TraceWriter, int], int]) -> _Steps:
    return lambda writer, first, _: [Step(op, count(writer, first))]


_STEPS: dict[str, _Steps] = {
    "pause": lambda *_: (),
    "get": _call(Op.GET, TraceWriter.fitting),
    "set": _call(Op.SET, TraceWriter.fitting),
    "clear": _call(Op.CLEAR, TraceWriter.fitting),
    "negative": _refused,
    "forward": _call(Op.FORWARD, TraceWriter.padded),
    "profile": _call(Op.PROFILE, TraceWriter.padded),
    "get above": _call(Op.GET, TraceWriter.above),
    "set above": _call(Op.SET, TraceWriter.above),
    "clear above": _call(Op.CLEAR, TraceWriter.above),
    "resize": _resize,
    "spans": _spans,
    "unusual": _unusual,
    "misshapen": _misshapen,
    "micro-batches": _micro_batch,
    "gets": _gets,
    "out of memory": _out_of_memory,
    "sets": _call(Op.SET, TraceWriter.fitting),
    "steps": _step,
    "capture": _capture,
    "replays": _replay,
}
"""Steps of each kind for two numbers; each is appended before the next is drawn from the iterator."""

LENGTHS = dict.fromkeys(_STEPS, 1) | {
    "unusual": 3, "misshapen": 3, "micro-batches": 3, "sets": 12, "steps": 6, "replays": 3,
}  # fmt: skip
"""Most pairs of numbers of each kind, simple kinds first: hypothesis shrinks towards the first.

The last two kinds need captured graphs.
"""
