"""Strategy of the traces that a hunt plays: lifecycles as engines have them, and calls in any order.

hypothesis draws phrases of small numbers, and `_Writer` turns them into steps beside a model of the buffer
(rows, tokens set).  No number is drawn from a range of more than `_PICKS` values: hypothesis mixes integers
of 100 and more, which it finds in the source of loaded modules, into larger ranges, so that another
installation would play other traces.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import NamedTuple

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from deepstack_harness.contract.trace import Op, Step, Trace
from deepstack_harness.fuzzing.strategies import (
    CAPACITIES,
    SHAPE_FAULTS,
    breaking_counts,
    growing_counts,
    paddings,
)
from deepstack_harness.fuzzing.target import Target

_PICKS = 96
_RANKS = (1, 2, 4, 8)
_COMPILED_CAPACITIES = (2, 16, 16, 16)
"""Rows beside a compiled decoder: one that sees a single row first is compiled for one row."""
_LONGEST = 16
_GROWTH = 4
"""A buffer grows to a few times the rows that it was made with; every row is read after every step."""


class _Phrase(NamedTuple):
    """A kind of steps, how rows are read behind them, and pairs of numbers that choose the counts of each."""

    kind: str
    read: int
    picks: list[tuple[int, int]]


def lifecycles(target: Target) -> SearchStrategy[Trace]:
    """Return the strategy of traces for a target.  The simplest one is a read of one row."""
    kinds = [*_LENGTHS][:-2]
    kinds += [] if target.alone else ["steps"] * 2
    kinds += ["capture", "replays", "replays", "replays"] if target.arm.captured else []
    phrases = st.one_of([_phrase(kind) for kind in kinds])
    few, many = (st.lists(phrases, min_size=least, max_size=_LONGEST) for least in (1, 6))
    capacities = sorted(_COMPILED_CAPACITIES if target.arm.compiled else CAPACITIES)
    drawn = st.tuples(st.sampled_from(capacities), st.booleans(), st.one_of(few, many, many))
    return drawn.map(lambda parts: _Writer(target, *parts).trace)


def _phrase(kind: str) -> SearchStrategy[_Phrase]:
    pick = st.integers(0, _PICKS - 1)
    picks = st.lists(st.tuples(pick, pick), min_size=1, max_size=_LENGTHS[kind])
    return st.tuples(st.just(kind), st.integers(0, 7), picks).map(lambda parts: _Phrase(*parts))


class _Writer:
    """Writer of the trace of some phrases; it assumes that the buffer grows whenever it may."""

    def __init__(self, target: Target, capacity: int, begun: bool, phrases: Iterable[_Phrase]) -> None:
        self.made = self.rows = capacity
        self.tokens = self.before = 0
        self.captured: set[int] = set()
        self._target = target
        self._steps: list[Step] = []
        self._begin(begun)
        for phrase in phrases:
            self._write(phrase)

    @property
    def trace(self) -> Trace:
        """Return the trace; where no phrase had a step, a read."""
        return Trace(self.made, tuple(self._steps) or (Step(Op.GET, self.made),))

    def _begin(self, begun: bool) -> None:
        """Begin as engines do: a profile run before anything is compiled, then the capture of a graph."""
        if self._target.arm.compiled or (begun and not self._target.alone):
            self._append(Step(Op.PROFILE, self.made))
        if self._target.arm.captured:
            self._append(Step(Op.CAPTURE, self.made))
        elif begun:
            self._append(Step(Op.GET, self.made))

    def _write(self, phrase: _Phrase) -> None:
        write = _STEPS[phrase.kind]
        for step in chain.from_iterable(write(self, *pair) for pair in phrase.picks):
            self._append(step)
            if phrase.read > 1:
                self._read(self.made if phrase.read == 7 else self.rows, step)
        if phrase.read == 1 and self._steps:
            self._read(self.rows, self._steps[-1])

    def _read(self, rows: int, behind: Step) -> None:
        if behind.op is not Op.GET or behind.tokens < rows:
            self._append(Step(Op.GET, rows))

    def _append(self, step: Step) -> None:
        self._steps.append(step)
        count = step.tokens
        if step.op is Op.SET:
            if (step.levels, step.hidden) != (None, None):
                return
            self.before, self.tokens = self.tokens, count
        elif step.op in _ENDS_PAYLOAD and count >= 0:
            self.before, self.tokens = self.tokens or self.before, 0
        elif step.op is Op.RESIZE and count >= max(1, self.tokens):
            self.rows = count
        if step.op is Op.CAPTURE:
            self.captured.add(count)
        if step.op is not Op.CLEAR:
            self.rows = max(self.rows, count)

    def fitting(self, pick: int) -> int:
        """Return a count in [0, rows]: by what stands in the buffer, where buffers broke, or any."""
        rows, live = self.rows, self.tokens
        named = (
            1, live, rows, live + 1, live - 1, rows - 1, 2, self.before, self.before - 1, self.before + 1,
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
        return counts[pick % len(counts)]

    def padded(self, pick: int) -> int:
        """Return P for N as an engine pads it; any count for text, or where no decoder runs."""
        if not self.tokens or (self._target.alone and pick % 5 == 0):
            return self.fitting(pick)
        wanted = paddings(self.tokens, self.rows, _RANKS[pick // 5 % len(_RANKS)])
        return wanted[pick % len(wanted)]


_ENDS_PAYLOAD = frozenset({Op.CLEAR, Op.FORWARD, Op.PROFILE, Op.CAPTURE, Op.REPLAY})


def _misshapen(writer: _Writer, first: int, second: int) -> Iterator[Step]:
    tokens = writer.above(first) if first % 4 == 3 else writer.fitting(first)
    yield Step(Op.SET, tokens, *SHAPE_FAULTS[second % len(SHAPE_FAULTS)])


def _spans(writer: _Writer, first: int, second: int) -> Iterator[Step]:
    tokens = max(1, writer.fitting(first))
    start = second % tokens
    yield Step(Op.SET, tokens, spans=((start, start + 1 + second // 2 % (tokens - start)),))


def _resize(writer: _Writer, first: int, second: int) -> Iterator[Step]:
    """Resize around a payload that is there, or was cleared just now."""
    if not writer.tokens:
        yield Step(Op.SET, max(1, writer.fitting(second)))
    live = writer.tokens
    if second % 2:
        yield Step(Op.CLEAR, live)
    near = (live, live - 1, live + 1, writer.rows - 1, writer.fitting(second))
    yield Step(Op.RESIZE, writer.above(first) if first % 3 == 2 else max(0, near[first // 3 % len(near)]))


def _micro_batch(writer: _Writer, first: int, _: int) -> Iterator[Step]:
    tokens = writer.fitting(first)
    yield Step(Op.GET, tokens)
    yield Step(Op.CLEAR, tokens)


def _step(writer: _Writer, first: int, second: int) -> Iterator[Step]:
    """Schedule one step: a visual one sets and runs, one of text alone runs."""
    if second % 4 != 3:
        yield Step(Op.SET, writer.fitting(first))
    yield Step(Op.FORWARD, writer.padded(second))


def _capture(writer: _Writer, first: int, _: int) -> Iterator[Step]:
    """Capture another size, for a payload that may be there."""
    counts = [tokens for tokens in breaking_counts(writer.rows) if tokens >= max(1, writer.tokens)]
    yield Step(Op.CAPTURE, counts[first % len(counts)])


def _replay(writer: _Writer, first: int, second: int) -> Iterator[Step]:
    """Replay a graph that was captured, behind a payload that fits it or as text."""
    sizes = sorted(tokens for tokens in writer.captured if tokens >= writer.tokens)
    if sizes:
        tokens = sizes[-1 - first % len(sizes)]
        if second % 4 != 3:
            yield Step(Op.SET, (tokens, max(0, tokens - 1), second // 4 % (tokens + 1))[second % 3])
        yield Step(Op.REPLAY, tokens)


_STEPS: dict[str, Callable[[_Writer, int, int], Iterable[Step]]] = {
    "pause": lambda *_: (),
    "get": lambda writer, first, _: [Step(Op.GET, writer.fitting(first))],
    "set": lambda writer, first, _: [Step(Op.SET, writer.fitting(first))],
    "clear": lambda writer, first, _: [Step(Op.CLEAR, writer.fitting(first))],
    "negative": lambda _, first, __: [Step((Op.GET, Op.CLEAR, Op.RESIZE)[first % 3], -1)],
    "forward": lambda writer, first, _: [Step(Op.FORWARD, writer.padded(first))],
    "profile": lambda writer, first, _: [Step(Op.PROFILE, writer.padded(first))],
    "get above": lambda writer, first, _: [Step(Op.GET, writer.above(first))],
    "set above": lambda writer, first, _: [Step(Op.SET, writer.above(first))],
    "resize": _resize,
    "spans": _spans,
    "misshapen": _misshapen,
    "micro-batches": _micro_batch,
    "sets": lambda writer, first, _: [Step(Op.SET, writer.fitting(first))],
    "steps": _step,
    "capture": _capture,
    "replays": _replay,
}
"""Steps of each kind for two numbers; each is written before the next is asked for."""

_LENGTHS = dict.fromkeys(_STEPS, 1) | {"micro-batches": 3, "sets": 12, "steps": 6, "replays": 3}
"""Most pairs of numbers of each kind, simple kinds first: hypothesis shrinks towards the first.

The last two kinds need captured graphs.
"""
