"""The contract as a model: the content that every row must have after every step, and its owner.

Pure Python, no tensors. A state is small because the contract is: after `set N` rows [0, N) hold that payload
and everything else is zero. What a call above the capacity does (grow, or raise and change nothing) is the
buffer's choice, so the ledger is given what happened, and derives what must follow.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from itertools import accumulate, zip_longest

from deepstack_harness.contract.observation import RowRange, Rows
from deepstack_harness.contract.rules import PayloadKind, Rule
from deepstack_harness.contract.trace import INTEGERS, READS_BUFFER, RUNS_DECODER, Op, Step


class CallOutcome(Enum):
    """The outcomes of a call that the contract allows."""

    ANSWERS = "answers"
    RAISES = "raises"
    EITHER = "answers or raises"


class Fate(StrEnum):
    """The state of a payload; ELSEWHERE is the other buffer of the trace."""

    LIVE = "live"
    REPLACED = "replaced"
    CLEARED = "cleared"
    REJECTED = "rejected"
    ELSEWHERE = "set in the other buffer"


NO_ROWS = range(0)


@dataclass(frozen=True)
class Expected:
    """The expectation of one step: its outcome, the rule that a deviation breaks, the rows of each level.

    `levels` has the expected runs of each level; empty for steps that read nothing. Rows in `may_be_zero`
    are right as zeros too: they belong to a micro-batch that is still alive (see `Ledger.commit`). Of a
    payload that has rows for every token, rows outside of `real` are padding; None for other payloads.
    """

    outcome: CallOutcome
    rule: Rule
    levels: Rows = ()
    may_be_zero: range = NO_ROWS
    real: range | None = None


@dataclass
class Payload:
    """One payload of the trace: its size in tokens, its owner, its fate, and where it ended.

    `content` names the content of every row, where rows are not all different (`StepFacts.content`). `parts`
    is the number of rows that micro-batches cleared so far, where each micro-batch cleared as many rows as it
    had read; None before the first one. Rows before `first_row` are cleared.
    """

    number: int
    tokens: int
    request: str
    fate: Fate
    spans: tuple[tuple[int, int], ...]
    """Ranges of rows with data; the others are zero."""
    ended_by: int = 0
    """Number of the step (from 1) that replaced, cleared or rejected it."""
    content: Rows | None = None
    parts: int | None = None
    first_row: int = 0


@dataclass
class Ledger:
    """Expectations along a trace, for a buffer of `capacity` rows with `levels` and `hidden`.

    Call `expect(step)` and then `commit(step, ...)` for each step in order. `capacity` is what the buffer was
    made with, and then what it reports. `get` has to return up to `promised` rows in any case: the largest of
    the capacity that the buffer was made with, the size of the last resize, and N.
    """

    capacity: int
    levels: int
    hidden: int
    payloads: dict[int, Payload] = field(default_factory=dict)
    steps_done: int = 0
    unsound: bool = False
    """Rows are undefined until the next set or clear: an invalid set was accepted, or one ran out of memory
    where it did not have to grow.
    """
    promised: int = 0
    last_get: int | None = None
    """Rows of the last get (its P); None after a set or a clear."""
    kind: PayloadKind = PayloadKind.VISUAL
    """EVERY_TOKEN: rows after N are padding, and after a clear all rows are."""

    def __post_init__(self) -> None:
        """Begin with an empty buffer of the stated capacity."""
        self.promised = max(self.promised, self.capacity)

    @property
    def live(self) -> Payload | None:
        """The payload that rows [0, N) hold now."""
        newest_first = reversed(self.payloads.values())
        return next((payload for payload in newest_first if payload.fate is Fate.LIVE), None)

    @property
    def tokens(self) -> int:
        """N, the number of rows that hold data now."""
        return self.live.tokens if self.live else 0

    def rows(self, level: int, tokens: int) -> tuple[RowRange, ...]:
        """Return the content that rows [0, tokens) of a level must have: the payload, then zeros."""
        held = list(_held(self.live, level, tokens)) if self.live else []
        ends = [0, *(start + run.rows for start, run in held)]
        starts = [*(start for start, _ in held), tokens]
        gaps = [_zeros(start - end) for start, end in zip(starts, ends, strict=True)]
        runs = [
            run for pair in zip_longest(gaps, (run for _, run in held), fillvalue=_zeros(0)) for run in pair
        ]
        return tuple(run for run in runs if run.rows)

    def owner_of(self, origin: tuple[int, int, int]) -> Payload:
        """Return the payload that a wrong row is blamed on: of several with this content the last one."""
        named = self.payloads[abs(origin[0])]
        ended = (p for p in self.payloads.values() if p.fate in (Fate.REPLACED, Fate.CLEARED))
        same = [p for p in ended if p.number >= named.number and _has(p, origin)]
        return same[-1] if same else named

    def expect(self, step: Step) -> Expected:
        """Return the expectation of the next step, before it is done."""
        if self._invalid(step):
            return Expected(CallOutcome.RAISES, Rule.REJECTION)
        if step.op is Op.RESIZE:
            return Expected(CallOutcome.EITHER, Rule.CAPACITY)
        if step.dtype in INTEGERS and step.tokens <= self.capacity:
            return Expected(CallOutcome.EITHER, Rule.BOUNDARY)
        reads, live = step.op in READS_BUFFER, self.live
        rows = tuple(self.rows(level, step.tokens) for level in range(self.levels if reads else 0))
        held = range(live.first_row, live.tokens) if live else NO_ROWS
        may_be_zero = NO_ROWS if live is None or live.parts is None else held
        real = None if self.kind is PayloadKind.VISUAL else held
        if step.fail is not None or step.tokens > self.capacity:
            has_to = step.fail is None and reads and step.tokens <= self.promised
            outcome = CallOutcome.ANSWERS if has_to else CallOutcome.EITHER
            return Expected(outcome, Rule.CAPACITY, rows, may_be_zero, real)
        return Expected(CallOutcome.ANSWERS, Rule.BOUNDARY, rows, may_be_zero, real)

    def commit(self, step: Step, *, accepted: bool, capacity: int, content: Rows | None = None) -> None:
        """Move on past a step; `accepted`: its last buffer call returned, `capacity`: reported then.

        For `forward` and `profile` that last call is the clear. A clear of fewer rows than N ends the
        payload, unless the get before it returned just these rows: then the step has several micro-batches,
        and the payload ends once as many rows were cleared as were set.
        """
        self.steps_done += 1
        if step.op is Op.SET:
            within = step.fail is not None and step.tokens <= self.capacity
            self.unsound = self._invalid(step) if accepted else within or self.unsound
            if accepted:
                self._end_live(Fate.REPLACED)
                self.last_get = None
            self._add(step, Fate.LIVE if accepted else Fate.REJECTED, content)
        elif accepted and step.tokens >= 0:
            if step.op in READS_BUFFER:
                self.last_get = step.tokens
            if step.op is Op.CLEAR or step.op in RUNS_DECODER:
                self._clear(step.tokens)
                self.unsound = False
        resized = accepted and step.op is Op.RESIZE
        self.capacity = capacity
        self.promised = max(capacity, step.tokens if resized else self.promised, self.tokens)

    def pass_by(self, step: Step) -> None:
        """Count a step on the other buffer: steps and payloads have the numbers of the whole trace."""
        self.steps_done += 1
        if step.op is Op.SET:
            self._add(step, Fate.ELSEWHERE, None)

    def _invalid(self, step: Step) -> bool:
        wrong_shape = step.levels not in (None, self.levels) or step.hidden not in (None, self.hidden)
        # Swapped sizes may be equal: then `shape=` gives the right shape.
        same = {"swapped": self.levels, "transposed": self.hidden}
        misshapen = step.shape is not None and step.tokens != same.get(step.shape)
        return step.tokens < 0 or wrong_shape or misshapen

    def _add(self, step: Step, fate: Fate, content: Rows | None) -> None:
        number = len(self.payloads) + 1
        request = step.request or f"r{number}"
        spans = ((0, step.tokens),) if step.spans is None else step.spans
        self.payloads[number] = Payload(
            number, step.tokens, request, fate, spans, self.steps_done, content=content
        )

    def _clear(self, tokens: int) -> None:
        last_get, self.last_get = self.last_get, None
        live = self.live
        if live is not None and last_get == tokens < live.tokens:
            live.parts = (live.parts or 0) + tokens
            live.first_row = max(live.first_row, tokens)
            if live.parts < live.tokens:
                return
        self._end_live(Fate.CLEARED)

    def _end_live(self, fate: Fate) -> None:
        if self.live is not None:
            self.live.ended_by = self.steps_done
            self.live.fate = fate


def _held(payload: Payload, level: int, tokens: int) -> Iterator[tuple[int, RowRange]]:
    """Iterate over (first row, run) of the rows with data of a payload in [first_row, tokens)."""
    if payload.content is None:
        spans = payload.spans
        runs = [(start, RowRange(payload.number, level, start, end - start)) for start, end in spans]
    else:
        content = payload.content[level]
        starts = accumulate((run.rows for run in content), initial=0)
        runs = list(zip(starts, content, strict=False))
    for start, run in runs:
        first, end = max(start, payload.first_row), min(start + run.rows, tokens)
        if first < end and run.payload != 0:
            counts_up = run.payload is not None and run.payload > 0
            yield first, run._replace(row=run.row + (first - start if counts_up else 0), rows=end - first)


def _has(payload: Payload, origin: tuple[int, int, int]) -> bool:
    number, level, row = origin
    return any(
        run.payload == number and run.level == level and run.row <= row < run.row + run.rows
        for runs in payload.content or ()
        for run in runs
    )


def _zeros(rows: int) -> RowRange:
    return RowRange(0, 0, 0, rows)
