"""The contract as a model: the content that every row must have after every step, and its owner.

Pure Python, no tensors.  A state is small because the contract is: after
`set N` rows [0, N) hold that payload and everything else is zero.  What a call
above the capacity does (grow, or raise and change nothing) is the buffer's
choice, so the ledger is told what happened and then knows what must follow.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from itertools import zip_longest

from deepstack_harness.contract.observation import RowRange
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.trace import READS_BUFFER, RUNS_DECODER, Op, Step


class CallOutcome(Enum):
    """The outcomes of a call that the contract allows."""

    ANSWERS = "answers"
    RAISES = "raises"
    EITHER = "answers or raises"


class Fate(StrEnum):
    """The state of a payload."""

    LIVE = "live"
    REPLACED = "replaced"
    CLEARED = "cleared"
    REJECTED = "rejected"


@dataclass(frozen=True)
class Expected:
    """The expectation of one step: its outcome, the rule that a deviation breaks, the rows of each level.

    `levels` has the expected runs of each level; empty for steps that read nothing.
    """

    outcome: CallOutcome
    rule: Rule
    levels: tuple[tuple[RowRange, ...], ...] = ()


@dataclass
class Payload:
    """One payload of the trace: its size in tokens, its owner, its fate, and where it ended."""

    number: int
    tokens: int
    request: str
    fate: Fate
    spans: tuple[tuple[int, int], ...]
    """Ranges of rows with data; the others are zero."""
    ended_by: int = 0
    """Number of the step (from 1) that replaced, cleared or rejected it."""


@dataclass
class Ledger:
    """Expectations along a trace, for a buffer of `capacity` rows with `levels` and `hidden`.

    Call `expect(step)` and then `commit(step, ...)` for each step in order.
    """

    capacity: int
    levels: int
    hidden: int
    payloads: dict[int, Payload] = field(default_factory=dict)
    steps_done: int = 0
    unsound: bool = False
    """An invalid set was accepted: its rows are undefined until the next set or clear."""

    @property
    def live(self) -> Payload | None:
        """The payload that rows [0, N) hold now."""
        last = [payload for payload in self.payloads.values() if payload.fate is Fate.LIVE]
        return last[0] if last else None

    @property
    def tokens(self) -> int:
        """N, the number of rows that hold data now."""
        return self.live.tokens if self.live else 0

    def rows(self, level: int, tokens: int) -> tuple[RowRange, ...]:
        """Return the content that rows [0, tokens) of a level must have: the payload, then zeros."""
        held = list(_held(self.live, level, tokens)) if self.live else []
        ends = [0, *(run.row + run.rows for run in held)]
        starts = [*(run.row for run in held), tokens]
        gaps = [_zeros(start - end) for start, end in zip(starts, ends, strict=True)]
        runs = [run for pair in zip_longest(gaps, held, fillvalue=_zeros(0)) for run in pair]
        return tuple(run for run in runs if run.rows)

    def stale_rows(self, fate: Fate) -> int:
        """Return n: rows [0, n) once held a payload with this fate."""
        return max((p.tokens for p in self.payloads.values() if p.fate is fate), default=0)

    def expect(self, step: Step) -> Expected:
        """Return the expectation of the next step, before it is done."""
        if self._invalid(step):
            return Expected(CallOutcome.RAISES, Rule.R8)
        if step.op is Op.RESIZE:
            return Expected(CallOutcome.RAISES if step.tokens < self.tokens else CallOutcome.EITHER, Rule.R4)
        rows = self._all_levels(step.tokens) if step.op in READS_BUFFER else ()
        if step.tokens > self.capacity:
            return Expected(CallOutcome.EITHER, Rule.R4, rows)
        return Expected(CallOutcome.ANSWERS, Rule.R2, rows)

    def commit(self, step: Step, *, accepted: bool, capacity: int) -> None:
        """Move on behind a step; `accepted`: its last buffer call returned, `capacity`: reported then.

        For `forward` and `profile` that last call is the clear.
        """
        self.steps_done += 1
        if step.op is Op.SET:
            self._set(step, accepted)
        elif accepted and (step.op is Op.CLEAR or step.op in RUNS_DECODER) and step.tokens >= 0:
            self._end_live(Fate.CLEARED)
            self.unsound = False
        self.capacity = capacity

    def _all_levels(self, tokens: int) -> tuple[tuple[RowRange, ...], ...]:
        return tuple(self.rows(level, tokens) for level in range(self.levels))

    def _invalid(self, step: Step) -> bool:
        wrong_shape = step.levels not in (None, self.levels) or step.hidden not in (None, self.hidden)
        return step.tokens < 0 or wrong_shape

    def _set(self, step: Step, accepted: bool) -> None:
        self.unsound = accepted and self._invalid(step)
        if accepted:
            self._end_live(Fate.REPLACED)
        number = len(self.payloads) + 1
        fate = Fate.LIVE if accepted else Fate.REJECTED
        request = step.request or f"r{number}"
        spans = ((0, step.tokens),) if step.spans is None else step.spans
        self.payloads[number] = Payload(number, step.tokens, request, fate, spans, self.steps_done)

    def _end_live(self, fate: Fate) -> None:
        if self.live is not None:
            self.live.ended_by = self.steps_done
            self.live.fate = fate


def _held(payload: Payload, level: int, tokens: int) -> Iterator[RowRange]:
    """Iterate over the rows with data of a payload in [0, tokens)."""
    for start, end in payload.spans:
        if start < min(end, tokens):
            yield RowRange(payload.number, level, start, min(end, tokens) - start)


def _zeros(rows: int) -> RowRange:
    return RowRange(0, 0, 0, rows)
