"""Writer of one trace: it turns pairs of small numbers into steps beside a model of the buffers."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from deepstack_harness.contract.case import HIDDEN_ALONE, LEVELS_ALONE
from deepstack_harness.contract.trace import CALLS_BUFFER, SECOND, Op, Step, Trace
from deepstack_harness.fuzzing.input_kinds import USUAL, BufferSettings, wrong_shapes
from deepstack_harness.fuzzing.strategies import SHAPE_FAULTS, breaking_counts, growing_counts, paddings
from deepstack_harness.fuzzing.target import Target

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
        if step.fail is not None or (step.op is Op.SET and (step.levels, step.hidden) != (None, None)):
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
