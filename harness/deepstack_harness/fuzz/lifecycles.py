"""Strategy of the traces that a hunt plays: lifecycles as engines have them, and calls in any order.

hypothesis draws phrases of small numbers, and a `TraceWriter` turns them into steps.  No number is drawn from
a range of more than `_PICKS` values: hypothesis mixes integers of 100 and more, which it finds in the source
of loaded modules, into larger ranges, so that another installation would play other traces.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from deepstack_harness.contract.case import HIDDEN_ALONE, LEVELS_ALONE
from deepstack_harness.contract.trace import (
    CALLS_BUFFER,
    MAY_BE_NEGATIVE,
    SECOND,
    SHAPES,
    Op,
    Step,
    Trace,
)
from deepstack_harness.fuzz.faults import Target
from deepstack_harness.fuzz.strategies import (
    CAPACITIES,
    KINDS_ALONE,
    KINDS_BESIDE_DECODER,
    KINDS_COMPILED,
    PAYLOADS,
    PAYLOADS_BESIDE_DECODER,
    SHAPE_FAULTS,
    USUAL,
    BufferSettings,
    breaking_counts,
    growing_counts,
    paddings,
    refused_counts,
    wrong_shapes,
)

_RANKS = (1, 2, 4, 8)
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
    """Steps on buffers of `made` rows; `on` is the buffer that the next calls are on."""

    target: Target
    made: int
    kind: BufferSettings = USUAL
    on: str | None = None
    steps: list[Step] = field(default_factory=list)
    captured: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        """Begin with empty buffers."""
        names = (None, SECOND)[: self.kind.buffers]
        self._models = {name: _Model(self.made) for name in names}

    @property
    def trace(self) -> Trace:
        """Return the trace; where no step was written, a read."""
        kind = self.kind
        return Trace(
            self.made, tuple(self.steps) or (Step(Op.GET, self.made),), levels=kind.levels,
            hidden=kind.hidden, dtype=kind.dtype, mode=kind.mode, buffers=kind.buffers,
        )  # fmt: skip

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
        """Levels of a buffer alone."""
        return self.kind.levels or LEVELS_ALONE

    @property
    def wrong_shapes(self) -> tuple[tuple[int | None, int | None], ...]:
        """The (levels, hidden) of payloads that the buffer must refuse."""
        return (
            wrong_shapes(self.levels, self.kind.hidden or HIDDEN_ALONE) if self.target.alone else SHAPE_FAULTS
        )

    def write(self, steps: Iterable[Step]) -> None:
        """Append steps; calls are on the buffer `on`."""
        for step in steps:
            self.append(step)

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
        """Return a count in [0, rows]: by what stands in the buffer, where buffers broke, or any."""
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
        if not tokens or (self.target.alone and pick % 5 == 0):
            return self.fitting(pick)
        wanted = paddings(tokens, self._models[None].rows, _RANKS[pick // 5 % len(_RANKS)])
        return wanted[pick % len(wanted)]


_PICKS = 96
"""Numbers to pick from.  hypothesis repeats itself: where there are two numbers, both choose from a table."""
_COMPILED_CAPACITIES = (2, 16, 16, 16)
"""Rows beside a compiled decoder: one that sees a single row first is compiled for one row."""
_LONGEST = 16
_REFUSING = sorted(MAY_BE_NEGATIVE)
_ALONE = frozenset({"clear above", "gets", "out of memory"})
"""Kinds of calls that a decoder adds nothing to: played where the buffer is alone, and steps cost little."""
_GETS = (2, 4, 9, 64)
"""Lengths of runs of gets; few are long, because every answer is compared."""
_MANY = 2500
"""Calls of a long run, of which the answers are compared with the first alone."""
_SECONDS = (90, 86_400)


class _Phrase(NamedTuple):
    """A kind of steps, how rows are read behind them, and pairs of numbers that choose the counts of each.

    With `second` the steps are on the second buffer, where there is one.
    """

    kind: str
    read: int
    second: bool
    picks: list[tuple[int, int]]


def lifecycles(target: Target) -> SearchStrategy[Trace]:
    """Return the strategy of traces for a target.  The simplest one is a read of one row."""
    kinds = [kind for kind in [*_LENGTHS][:-2] if target.alone or kind not in _ALONE]
    kinds += ["unusual"] if target.alone else ["steps"] * 2
    kinds += ["capture", *["replays"] * 5] if target.arm.captured else []
    phrases = st.one_of([_phrase(kind) for kind in kinds])
    few, many = (st.lists(phrases, min_size=least, max_size=_LONGEST) for least in (1, 6))
    capacities = sorted(_COMPILED_CAPACITIES if target.arm.compiled else CAPACITIES)
    drawn = st.tuples(
        st.sampled_from(capacities),
        st.sampled_from(_buffer_kinds(target)),
        st.booleans(),
        st.one_of(few, many, many),
    )
    return drawn.map(lambda parts: _written(target, *parts))


def _buffer_kinds(target: Target) -> tuple[BufferSettings, ...]:
    if target.alone:
        return KINDS_ALONE
    return KINDS_COMPILED if target.arm.compiled else KINDS_BESIDE_DECODER


def _phrase(kind: str) -> SearchStrategy[_Phrase]:
    pick = st.integers(0, _PICKS - 1)
    picks = st.lists(st.tuples(pick, pick), min_size=1, max_size=_LENGTHS[kind])
    drawn = st.tuples(st.just(kind), st.integers(0, 15), picks)
    return drawn.map(lambda parts: _Phrase(parts[0], parts[1] % 8, parts[1] > 7, parts[2]))


def _written(
    target: Target, capacity: int, kind: BufferSettings, begun: bool, phrases: Iterable[_Phrase]
) -> Trace:
    writer = TraceWriter(target, capacity, kind)
    writer.write(_beginning(target, capacity, begun))
    for phrase in phrases:
        writer.on = SECOND if phrase.second and kind.buffers > 1 else None
        _write(writer, phrase)
    return writer.trace


def _beginning(target: Target, capacity: int, begun: bool) -> Iterator[Step]:
    """Begin as engines do: profile before anything is compiled, then capture, the largest size first."""
    if target.arm.compiled or (begun and not target.alone):
        yield Step(Op.PROFILE, capacity)
    if target.arm.captured:
        sizes = {capacity, capacity // 2, capacity // 4, 1} - {0} if begun else {capacity}
        yield from (Step(Op.CAPTURE, size) for size in sorted(sizes, reverse=True))
    elif begun:
        yield Step(Op.GET, capacity)


def _write(writer: TraceWriter, phrase: _Phrase) -> None:
    write = _STEPS[phrase.kind]
    for pair in phrase.picks:
        for step in write(writer, *pair):
            writer.append(step)
            if phrase.read > 1:
                writer.read(writer.made if phrase.read == 7 else writer.rows)
    if phrase.read == 1 and writer.steps:
        writer.read(writer.rows)


def _unusual(writer: TraceWriter, first: int, second: int) -> Iterator[Step]:
    """Set a payload as engines make them: how it lies in memory, its dtype, its values."""
    payloads = PAYLOADS if writer.target.alone else PAYLOADS_BESIDE_DECODER
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
    """Schedule one step: a visual one sets and runs, one of text alone runs."""
    writer.on = None
    if second % 4 != 3:
        yield Step(Op.SET, writer.fitting(first))
    yield Step(Op.FORWARD, writer.padded(second))


def _capture(writer: TraceWriter, first: int, _: int) -> Iterator[Step]:
    """Capture another size, for a payload that may be there."""
    counts = [tokens for tokens in breaking_counts(writer.rows) if tokens >= max(1, writer.tokens)]
    yield Step(Op.CAPTURE, counts[first % len(counts)])


def _replay(writer: TraceWriter, first: int, second: int) -> Iterator[Step]:
    """Replay a graph that was captured, behind a payload that fits it or as text."""
    sizes = sorted(tokens for tokens in writer.captured if tokens >= writer.tokens)
    if sizes:
        tokens = sizes[-1 - first % len(sizes)]
        if second % 4 != 3:
            yield Step(Op.SET, (tokens, max(0, tokens - 1), second // 4 % (tokens + 1))[second % 3])
        yield Step(Op.REPLAY, tokens)


def _refused(writer: TraceWriter, first: int, second: int) -> Iterator[Step]:
    counts = refused_counts(writer.rows)
    yield Step(_REFUSING[first % len(_REFUSING)], counts[second % len(counts)])


_STEPS: dict[str, Callable[[TraceWriter, int, int], Iterable[Step]]] = {
    "pause": lambda *_: (),
    "get": lambda writer, first, _: [Step(Op.GET, writer.fitting(first))],
    "set": lambda writer, first, _: [Step(Op.SET, writer.fitting(first))],
    "clear": lambda writer, first, _: [Step(Op.CLEAR, writer.fitting(first))],
    "negative": _refused,
    "forward": lambda writer, first, _: [Step(Op.FORWARD, writer.padded(first))],
    "profile": lambda writer, first, _: [Step(Op.PROFILE, writer.padded(first))],
    "get above": lambda writer, first, _: [Step(Op.GET, writer.above(first))],
    "set above": lambda writer, first, _: [Step(Op.SET, writer.above(first))],
    "clear above": lambda writer, first, _: [Step(Op.CLEAR, writer.above(first))],
    "resize": _resize,
    "spans": _spans,
    "unusual": _unusual,
    "misshapen": _misshapen,
    "micro-batches": _micro_batch,
    "gets": _gets,
    "out of memory": _out_of_memory,
    "sets": lambda writer, first, _: [Step(Op.SET, writer.fitting(first))],
    "steps": _step,
    "capture": _capture,
    "replays": _replay,
}
"""Steps of each kind for two numbers; each is written before the next is asked for."""

_LENGTHS = dict.fromkeys(_STEPS, 1) | {
    "unusual": 3, "misshapen": 3, "micro-batches": 3, "sets": 12, "steps": 6, "replays": 3,
}  # fmt: skip
"""Most pairs of numbers of each kind, simple kinds first: hypothesis shrinks towards the first.

The last two kinds need captured graphs.
"""
