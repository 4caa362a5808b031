"""Strategy of the traces that a hunt plays: lifecycles as engines have them, and calls in any order.

hypothesis draws phrases of small numbers, and `_Writer` turns them into steps beside a model of the buffer
(rows, tokens set).  No number is drawn from a range of more than `_PICKS` values: hypothesis mixes integers
of 100 and more, which it finds in the source of loaded modules, into larger ranges, so that another
installation would play other traces.
"""

from collections.abc import Callable, Iterable, Iterator
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
_LONGEST = 24
_GROWTH = 4
"""A buffer grows to a few times the rows that it was made with; every row is read after every step."""


class _Phrase(NamedTuple):
    """A kind of steps, two numbers that choose their counts, and how rows are read behind them."""

    kind: str
    first: int
    second: int
    read: int


def lifecycles(target: Target) -> SearchStrategy[Trace]:
    """Return the strategy of traces for a target.  The simplest one is a read of one row."""
    kinds = [*_PHRASES][:-3]
    kinds += [] if target.alone else ["serve"] * 2
    kinds += ["capture", "replay", "replay", "replay"] if target.arm.captured else []
    pick = st.sampled_from(range(_PICKS))
    phrase = st.builds(_Phrase, st.sampled_from(kinds), pick, pick, st.sampled_from(range(8)))
    capacities = sorted(_COMPILED_CAPACITIES if target.arm.compiled else CAPACITIES)
    phrases = st.one_of(
        st.lists(phrase, min_size=1, max_size=_LONGEST), st.lists(phrase, min_size=8, max_size=_LONGEST)
    )
    return st.builds(
        lambda *drawn: _Writer(target, *drawn).trace, st.sampled_from(capacities), st.booleans(), phrases
    )


class _Writer:
    """Writes the trace of some phrases; assumes that the buffer grows whenever it may."""

    def __init__(self, target: Target, capacity: int, begun: bool, phrases: list[_Phrase]) -> None:
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
        """The trace; where no phrase had a step, a read."""
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
        for step in _PHRASES[phrase.kind](self, phrase.first, phrase.second):
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


def _sets(writer: _Writer, first: int, second: int) -> Iterator[Step]:
    """Set payloads that no decoder reads."""
    for pick in _more_picks(first, second, 1 + second % 12):
        yield Step(Op.SET, writer.fitting(pick))


def _micro_batches(writer: _Writer, first: int, second: int) -> Iterator[Step]:
    """Do a step in two halves, each with a get and a clear of its own."""
    for pick in (first, second):
        tokens = writer.fitting(pick)
        yield Step(Op.GET, tokens)
        yield Step(Op.CLEAR, tokens)


def _engine_order(writer: _Writer, first: int, second: int) -> Iterator[Step]:
    """Schedule a few visual steps: each sets and runs."""
    for pick in _more_picks(first, second, 1 + second % 5):
        yield Step(Op.SET, writer.fitting(pick))
        yield Step(Op.FORWARD, writer.padded(pick // 7))


def _serve(writer: _Writer, first: int, second: int) -> Iterator[Step]:
    """Schedule a dozen steps of visual and text tokens: what a decoder is there for."""
    for pick in _more_picks(first, second, 12):
        if pick % 2:
            yield Step(Op.SET, writer.fitting(pick // 3))
        yield Step(Op.FORWARD, writer.padded(pick // 7))


def _capture(writer: _Writer, first: int, _: int) -> Iterator[Step]:
    """Capture another size, for a payload that may be there."""
    counts = [tokens for tokens in breaking_counts(writer.rows) if tokens >= max(1, writer.tokens)]
    yield Step(Op.CAPTURE, counts[first % len(counts)])


def _replay(writer: _Writer, first: int, second: int) -> Iterator[Step]:
    """Replay graphs that were captured, each behind a payload that fits it or as text."""
    for pick in _more_picks(first, second, 1 + second % 3):
        sizes = sorted(tokens for tokens in writer.captured if tokens >= writer.tokens)
        if sizes:
            tokens = sizes[-1 - pick % len(sizes)]
            if pick % 8 > 1:
                yield Step(Op.SET, (tokens, max(0, tokens - 1), pick // 8 % (tokens + 1))[pick % 3])
            yield Step(Op.REPLAY, tokens)


def _more_picks(first: int, second: int, count: int) -> Iterator[int]:
    """Iterate over numbers that follow from two; the first one stays."""
    pick = first
    for _ in range(count):
        yield pick
        pick = (pick * 1_103_515_245 + second + 12_345) % 2**31 >> 7


_PHRASES: dict[str, Callable[[_Writer, int, int], Iterable[Step]]] = {
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
    "micro-batches": _micro_batches,
    "sets": _sets,
    "engine order": _engine_order,
    "serve": _serve,
    "capture": _capture,
    "replay": _replay,
}
"""Phrases, simple ones first: hypothesis shrinks towards the first.  Steps follow the state: each is written
before the next is asked for.  The last three need a decoder, the last two graphs."""
