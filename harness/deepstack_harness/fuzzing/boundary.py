"""The boundary-check contract as a hunt of its own: who may ask for how many rows (R2, R4, R8).

For a capacity, N tokens set and P asked for: get and clear of 0 <= P <= capacity answer, with
the payload and then zeros; above it the buffer grows and keeps the payload, or raises and
changes nothing; below 0 it refuses.  Whatever was refused, all rows are read afterwards.
Small sizes are played all, larger ones are drawn, padded for the ranks that share a step.
"""

from collections.abc import Iterator

from hypothesis import strategies as st

from deepstack_harness.contract.trace import Op, Step, Trace
from deepstack_harness.fuzzing.hunt import Hunt
from deepstack_harness.fuzzing.strategies import growing_counts, pairs
from deepstack_harness.workload.padding import pad_to_multiple

SMALL = range(1, 5)
"""Capacities of which every N and P is played."""
LARGE = (16, 80, 320, 336, 480)
"""Capacities of the reported crashes."""
RANKS = (1, 2, 4, 8, 16)
DRAWN = 60


def search_boundary(hunt: Hunt, drawn: int = DRAWN) -> None:
    """Ask every small question that was not asked yet, and `drawn` larger ones."""
    small = list(every_question())
    for question in small[hunt.progress.examples :]:
        if not hunt.is_over:
            hunt.ask(question)
    hunt.search(larger_questions(), len(small) + drawn)


def questions(drawn: int = DRAWN) -> int:
    """Return the number of questions."""
    return len(list(every_question())) + drawn


def every_question() -> Iterator[Trace]:
    """Iterate over small capacities, N up to one above (and nothing set), P from -1 to two above."""
    for capacity in SMALL:
        for tokens in (None, *range(capacity + 2)):
            held = () if tokens is None else (Step(Op.SET, tokens),)
            for wanted in _wanted(capacity, tokens or 0):
                yield _read_behind_each(capacity, *held, Step(Op.GET, wanted), Step(Op.CLEAR, wanted))
                yield _read_behind_each(capacity, *held, Step(Op.RESIZE, wanted))


def _wanted(capacity: int, tokens: int) -> list[int]:
    padded = {pad_to_multiple(tokens, ranks) for ranks in RANKS[:3]}
    return sorted({*range(-1, capacity + 3), *padded})


@st.composite
def larger_questions(draw: st.DrawFn) -> Trace:
    """Draw a capacity of a reported crash, ranks, and (N, P) as an engine makes them, or P above it."""
    capacity, ranks = draw(st.sampled_from(LARGE)), draw(st.sampled_from(RANKS))
    tokens, wanted = draw(pairs(capacity, ranks))
    if draw(st.sampled_from(range(4))) == 3:
        wanted = draw(st.sampled_from(growing_counts(capacity, max(2, ranks))))
    asks = (Step(Op.GET, wanted), Step(Op.CLEAR, wanted))
    return _read_behind_each(
        capacity, Step(Op.SET, tokens), *(asks if draw(st.booleans()) else reversed(asks))
    )


def _read_behind_each(capacity: int, *steps: Step) -> Trace:
    """Return a trace with a read of all rows before the first step and behind each."""
    rows, done = capacity, [Step(Op.GET, capacity)]
    held = steps[0].tokens if steps[0].op is Op.SET else 0
    for step in steps:
        if step.op is Op.RESIZE and step.tokens >= max(1, held):
            rows = step.tokens
        rows = max(rows, step.tokens if step.op is not Op.CLEAR else 0)
        done += [step, Step(Op.GET, rows)]
    return Trace(capacity, tuple(done))
