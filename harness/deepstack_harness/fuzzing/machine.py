"""The rule-based state machine: its choices are steps, and its run is a trace.

It draws what to do from hypothesis, and from the state of the buffer how much of it:
counts lie where buffers broke (`deepstack_harness.fuzzing.strategies`) and around N and the capacity.
It never fails; the hunt that it belongs to notes findings, and goes on.
"""

from typing import TYPE_CHECKING, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from typing_extensions import override

from deepstack_harness.contract.trace import Op, Step
from deepstack_harness.fuzzing.strategies import (
    CAPACITIES,
    SHAPE_FAULTS,
    breaking_counts,
    growing_counts,
    paddings,
)

if TYPE_CHECKING:
    from deepstack_harness.fuzzing.example import Example
    from deepstack_harness.fuzzing.hunt import Hunt

PICKS = st.integers(0, 9999)
"""Chooses one of the counts that are possible then, which hypothesis does not know."""

RANKS = (1, 2, 4, 8)


class ContractMachine(RuleBasedStateMachine):
    """Lifecycle operations in any order; a subclass says to which hunt it belongs."""

    hunt: ClassVar["Hunt"]
    example: "Example"

    @initialize(capacity=st.sampled_from(CAPACITIES))
    def make(self, capacity: int) -> None:
        """A fresh buffer; everything is read before the first step."""
        self.example = self.hunt.begin(capacity)

    @rule(pick=PICKS)
    def set(self, pick: int) -> None:
        """A payload that fits."""
        self.example.act(Step(Op.SET, self._fitting(pick)))

    @rule(pick=PICKS, start=PICKS)
    def set_spans(self, pick: int, start: int) -> None:
        """A payload of which one range only is visual."""
        tokens = max(1, self._fitting(pick))
        first = start % tokens
        last = first + 1 + start // 100 % (tokens - first)
        self.example.act(Step(Op.SET, tokens, spans=((first, last),)))

    @rule(pick=PICKS)
    def set_above(self, pick: int) -> None:
        """A payload above the capacity."""
        self.example.act(Step(Op.SET, _one(growing_counts(self._rows), pick)))

    @rule(pick=PICKS, shape=st.sampled_from(SHAPE_FAULTS))
    def set_misshapen(self, pick: int, shape: tuple[int | None, int | None]) -> None:
        """A payload of a wrong shape, sometimes above the capacity."""
        counts = (self._fitting(pick), *growing_counts(self._rows)[:2])
        self.example.act(Step(Op.SET, _one(counts, pick // 7), *shape))

    @rule(pick=PICKS, op=st.sampled_from((Op.GET, Op.CLEAR)))
    def get_or_clear(self, pick: int, op: Op) -> None:
        """Any number of rows up to the capacity."""
        self.example.act(Step(op, self._around(pick)))

    @rule(pick=PICKS)
    def get_above(self, pick: int) -> None:
        """More rows than there are."""
        self.example.act(Step(Op.GET, _one(growing_counts(self._rows), pick)))

    @rule(pick=PICKS, other=PICKS, cleared=st.booleans())
    def resize(self, pick: int, other: int, cleared: bool) -> None:
        """More room, as much as before, and less: around a payload that is there, or just was."""
        if not self._tokens:
            self.example.act(Step(Op.SET, max(1, self._fitting(other))))
        live = self._tokens
        if cleared:
            self.example.act(Step(Op.CLEAR, live))
        near = (self._around(pick // 3 * 2 + 1), live, max(0, live - 1), min(live + 1, self._rows))
        larger = growing_counts(self._rows)
        self.example.act(Step(Op.RESIZE, _one(near if pick % 3 else larger, pick // 3)))

    @rule(op=st.sampled_from((Op.GET, Op.CLEAR, Op.RESIZE)))
    def negative(self, op: Op) -> None:
        """A count that must be refused."""
        self.example.act(Step(op, -1))

    @rule(pick=PICKS, op=st.sampled_from((Op.FORWARD, Op.PROFILE)))
    def forward(self, pick: int, op: Op) -> None:
        """One step of the engine, padded."""
        self.example.act(Step(op, self._padded(pick)))

    @rule(picks=st.lists(st.tuples(PICKS, PICKS), min_size=2, max_size=5))
    def engine_order(self, picks: list[tuple[int, int]]) -> None:
        """Several scheduled steps: a visual one sets and runs."""
        for pick, padding in picks:
            self.example.act(Step(Op.SET, self._fitting(pick)))
            self.example.act(Step(Op.FORWARD, self._padded(padding)))

    @precondition(lambda self: not self.hunt.target.alone)
    @rule(pick=PICKS)
    def serve(self, pick: int) -> None:
        """A dozen scheduled steps of visual and text tokens, from one choice: what a decoder is there for."""
        for _ in range(12):
            pick = (pick * 1_103_515_245 + 12_345) % 2**31
            if pick >> 8 & 1:
                self.example.act(Step(Op.SET, self._fitting(pick >> 9)))
            self.example.act(Step(Op.FORWARD, self._padded(pick >> 16)))

    @rule(picks=st.lists(PICKS, min_size=4, max_size=12))
    def sets(self, picks: list[int]) -> None:
        """Payloads that no step reads."""
        for pick in picks:
            self.example.act(Step(Op.SET, self._fitting(pick)))

    @rule(picks=st.tuples(PICKS, PICKS))
    def micro_batches(self, picks: tuple[int, int]) -> None:
        """A step in two halves, each with a get and a clear of its own."""
        for pick in picks:
            tokens = self._around(pick)
            self.example.act(Step(Op.GET, tokens))
            self.example.act(Step(Op.CLEAR, tokens))

    @precondition(lambda self: self.hunt.target.arm.captured)
    @rule(pick=PICKS)
    def capture(self, pick: int) -> None:
        """A graph of another size."""
        fitting = [tokens for tokens in breaking_counts(self._rows) if tokens >= max(1, self._tokens)]
        if fitting:
            self.example.act(Step(Op.CAPTURE, _one(tuple(fitting), pick)))

    @precondition(lambda self: self.hunt.target.arm.captured)
    @rule(pick=PICKS, visual=st.booleans())
    def replay(self, pick: int, visual: bool) -> None:
        """A step by a graph that was captured, behind a payload that fits it or as text."""
        fitting = tuple(tokens for tokens in sorted(self.example.captured) if tokens >= self._tokens)
        if not fitting:
            return
        tokens = _one(fitting, pick)
        if visual:
            self.example.act(
                Step(Op.SET, _one((tokens, max(0, tokens - 1), pick // 7 % (tokens + 1)), pick // 3))
            )
        self.example.act(Step(Op.REPLAY, tokens))

    @override
    def teardown(self) -> None:
        if hasattr(self, "example"):
            self.hunt.end(self.example)

    @property
    def _rows(self) -> int:
        return max(1, self.example.live.rows)

    @property
    def _tokens(self) -> int:
        return self.example.live.tokens

    def _fitting(self, pick: int) -> int:
        """Tokens up to the capacity, half of the time where buffers broke."""
        return _one(breaking_counts(self._rows), pick // 2) if pick % 2 else pick // 2 % (self._rows + 1)

    def _around(self, pick: int) -> int:
        """Tokens up to the capacity, half of the time 0, everything, or around N."""
        live = self._tokens
        near = (0, live, self._rows, live + 1, live - 1, live // 2)
        fitting = tuple(tokens for tokens in near if 0 <= tokens <= self._rows)
        return _one(fitting, pick // 2) if pick % 2 else self._fitting(pick // 2)

    def _padded(self, pick: int) -> int:
        """P for N: as an engine pads it; fewer too where no decoder runs, as a caller might by mistake."""
        wanted = paddings(self._tokens, self._rows, _one(RANKS, pick // 5))
        if self.hunt.target.alone and pick % 5 == 0:
            return self._around(pick // 5)
        if not self._tokens and pick % 2:
            return self._fitting(pick // 2)
        return _one(wanted, pick)


def _one(counts: tuple[int, ...], pick: int) -> int:
    return counts[pick % len(counts)]
