"""The boundary-check contract as a target of its own: who may ask for how many rows (R2, R4, R8).

For a capacity, N tokens set and P asked for: get and clear of 0 <= P <= capacity answer, with
the payload and then zeros; above it the buffer grows and keeps the payload, or raises and
changes nothing; below 0 it refuses.  Whatever was refused, all rows are read afterwards.
Small sizes are played all, larger ones are drawn, padded for the ranks that share a step.
"""

import contextlib
from collections.abc import Iterator

import torch
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from deepstack_harness.contract.trace import Op, Step
from deepstack_harness.fuzzing.hunt import Enough, Hunt, Result, Watch
from deepstack_harness.fuzzing.strategies import growing_counts, pairs
from deepstack_harness.fuzzing.target import Target
from deepstack_harness.workload.padding import pad_to_multiple

SMALL = range(1, 5)
"""Capacities of which every N and P is played."""
LARGE = (16, 80, 320, 336, 480)
"""Capacities of the reported crashes."""
RANKS = (1, 2, 4, 8, 16)
_DRAWN = 60

Question = tuple[int, tuple[Step, ...]]
"""A capacity, and the steps on it."""


def hunt_boundary(
    target: Target, *, drawn: int = _DRAWN, seed: int = 0, watch: Watch | None = None
) -> Result:
    """Every small question, and `drawn` larger ones; findings as `fuzzing.hunt.hunt` gives them."""
    going = Hunt(target, seed, (), watch or Watch(), examples=questions(drawn))
    with torch.no_grad(), contextlib.closing(going), contextlib.suppress(Enough):
        for question in every_question():
            _ask(going, question)
        _ask_drawn(going, drawn)
    return going.result


def questions(drawn: int = _DRAWN) -> int:
    """How many there are."""
    return len(list(every_question())) + drawn


def every_question() -> Iterator[Question]:
    """Each small capacity, N up to one above it (and nothing set), each P from -1 to two above it."""
    for capacity in SMALL:
        for tokens in (None, *range(capacity + 2)):
            held = () if tokens is None else (Step(Op.SET, tokens),)
            for wanted in _wanted(capacity, tokens or 0):
                yield capacity, (*held, Step(Op.GET, wanted), Step(Op.CLEAR, wanted))
                yield capacity, (*held, Step(Op.RESIZE, wanted))


def _wanted(capacity: int, tokens: int) -> list[int]:
    padded = {pad_to_multiple(tokens, ranks) for ranks in RANKS[:3]}
    return sorted({*range(-1, capacity + 3), *padded})


@st.composite
def larger_questions(draw: st.DrawFn) -> Question:
    """A capacity of a reported crash, ranks, and (N, P) as an engine makes them, or P above the capacity."""
    capacity, ranks = draw(st.sampled_from(LARGE)), draw(st.sampled_from(RANKS))
    tokens, wanted = draw(pairs(capacity, ranks))
    if draw(st.integers(0, 3)) == 0:
        wanted = draw(st.sampled_from(growing_counts(capacity, max(2, ranks))))
    asks = (Step(Op.GET, wanted), Step(Op.CLEAR, wanted))
    return capacity, (Step(Op.SET, tokens), *(asks if draw(st.booleans()) else reversed(asks)))


def _ask_drawn(going: Hunt, examples: int) -> None:
    @seed(going.seed)
    @settings(
        max_examples=examples, phases=[Phase.generate], deadline=None, database=None, derandomize=False,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(larger_questions())
    def ask(question: Question) -> None:
        _ask(going, question)

    ask()


def _ask(going: Hunt, question: Question) -> None:
    capacity, steps = question
    example = going.begin(capacity)
    for step in steps:
        example.act(step)
    going.end(example)
