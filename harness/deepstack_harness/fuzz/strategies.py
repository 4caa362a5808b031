"""hypothesis strategies of traces, requests and schedules; no torch.

Hunts and `check --thorough` draw from one strategy: phrases of small numbers, which a `TraceWriter` turns
into steps. No number is drawn from a range of more than `PICKS` values: hypothesis mixes integers of 100 and
more, which it finds in the source of loaded modules, into larger ranges, so that another installation would
draw other traces.
"""

from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from random import Random

from hypothesis import HealthCheck, Phase, Verbosity, find, settings
from hypothesis import strategies as st
from hypothesis.errors import NoSuchExample
from hypothesis.strategies import DrawFn, SearchStrategy

from deepstack_harness.catalogue.pairs import AXES, other_pairs
from deepstack_harness.catalogue.traces import THOROUGH_TRACES
from deepstack_harness.catalogue.workload import Request, ScheduledStep, schedule
from deepstack_harness.contract.arm import EAGER, ArmSpec, Capture
from deepstack_harness.contract.case import HIDDEN_ALONE
from deepstack_harness.contract.trace import Op, Step, Trace
from deepstack_harness.fuzz.writer import (
    CAPACITIES,
    KINDS_ALONE,
    KINDS_COMPILED,
    KINDS_WITH_DECODER,
    LENGTHS,
    PICKS,
    REPORTED_PAIRS,
    Options,
    Phrase,
    TraceWriter,
    paddings,
)

_PICK = st.integers(0, PICKS - 1)
_READS = st.integers(0, 15)
"""How rows are read after a phrase, on the first and on the second buffer; 0 and 8 are not at all."""
_COMPILED_CAPACITIES = (2, 16, 16, 16)
"""Rows for a compiled decoder: one that sees a single row first is compiled for one row."""
_ALONE = frozenset({"clear above", "gets", "out of memory"})
"""Kinds of calls that do not depend on a decoder: played only without one, where steps cost little."""


def lifecycles(arm: ArmSpec = EAGER, *, alone: bool = True) -> SearchStrategy[Trace]:
    """Return the strategy of traces under an arm; `alone`: no decoder reads the buffer.

    The simplest one is a read of one row.
    """
    kinds = _kinds_of_phrases(alone) + (["capture", *["replays"] * 5] if arm.captured else [])
    few, many = (_phrases(kinds, least, 16) for least in (1, 6))
    buffers = KINDS_COMPILED if arm.compiled else KINDS_ALONE if alone else KINDS_WITH_DECODER
    capacities = _COMPILED_CAPACITIES if arm.compiled else CAPACITIES
    return _traces(arm, capacities, buffers, st.one_of(few, many, many), alone=alone)


def _kinds_of_phrases(alone: bool) -> list[str]:
    kinds = [kind for kind in [*LENGTHS][:-2] if alone or kind not in _ALONE]
    return kinds + (["unusual"] if alone else ["steps"] * 2)


def _phrases(
    kinds: Sequence[str], least: int, most: int, reads: SearchStrategy[int] = _READS
) -> SearchStrategy[list[Phrase]]:
    phrases: list[SearchStrategy[Phrase]] = []
    for kind in kinds:
        picks = st.lists(st.tuples(_PICK, _PICK), min_size=1, max_size=LENGTHS[kind])
        drawn = st.tuples(st.just(kind), reads, picks)
        phrases.append(drawn.map(lambda parts: (parts[0], parts[1] % 8, parts[1] > 7, parts[2])))
    return st.lists(st.one_of(phrases), min_size=least, max_size=most)


def _traces(
    arm: ArmSpec, capacities: Sequence[int], buffers: Sequence[Options],
    phrases: SearchStrategy[list[Phrase]], *, alone: bool, hidden: int = HIDDEN_ALONE,
) -> SearchStrategy[Trace]:  # fmt: skip
    def written(parts: tuple[int, Options, bool, Sequence[Phrase]]) -> Trace:
        writer = TraceWriter(parts[0], alone, hidden, parts[1])
        writer.begin(compiled=arm.compiled, captured=arm.captured, usual=parts[2])
        for phrase in parts[3]:
            writer.write(*phrase)
        return writer.trace

    drawn = (st.sampled_from(sorted(capacities)), st.sampled_from(buffers), st.booleans(), phrases)
    return st.tuples(*drawn).map(written)


def pairs(capacity: int, ranks: int = 1) -> SearchStrategy[tuple[int, int]]:
    """Draw (N, P) of one step: a reported pair that fits, or one that is padded as engines do."""

    def padded(first: int, second: int) -> tuple[int, int]:
        tokens = TraceWriter(capacity).fitting(first + PICKS * second)
        wanted = paddings(tokens, capacity, ranks)
        return tokens, wanted[second % len(wanted)]

    reported = [pair for pair in REPORTED_PAIRS if pair[1] <= capacity]
    drawn = st.builds(padded, _PICK, _PICK)
    return st.one_of(st.sampled_from(reported), drawn) if reported else drawn


@st.composite
def engine_traces(draw: DrawFn, capacity: int = 16, ranks: int = 1, max_steps: int = 6) -> Trace:
    """Draw a correct engine's trace: a profile run, then steps of `set N; forward P` or of only text.

    >>> from hypothesis import given
    >>> @given(engine_traces(capacity=8, max_steps=3))
    ... def test_mine(trace):
    ...     assert trace.capacity == 8 and len(trace.steps) <= 7
    >>> test_mine()
    """
    done = [Step(Op.PROFILE, capacity)]
    for tokens, wanted in draw(st.lists(pairs(capacity, ranks), min_size=1, max_size=max_steps)):
        done += [Step(Op.SET, tokens)] if tokens and draw(st.booleans()) else []
        done.append(Step(Op.FORWARD, wanted))
    return Trace(capacity, tuple(done))


@st.composite
def schedules(draw: DrawFn, budget: int = 16, slots: int = 3) -> list[ScheduledStep]:
    """Draw chunked prefill of drawn requests: steps of at most `budget` tokens and `slots` requests.

    Prompts have 0 to 2 images of 28 to 140 pixels a side, and text; output tokens follow.

    >>> from hypothesis import given
    >>> @given(schedules(budget=16, slots=3))
    ... def test_scheduler(steps):
    ...     assert all(step.tokens <= 16 for step in steps)
    >>> test_scheduler()
    """
    sides = st.integers(28, 140)
    images = st.lists(st.tuples(sides, sides), max_size=2).map(tuple)
    parts = st.lists(st.tuples(images, st.integers(1, 40), st.integers(0, 6)), min_size=1, max_size=4)
    requests = [Request(f"r{number}", *drawn) for number, drawn in enumerate(draw(parts), 1)]
    return schedule(requests, draw(st.integers(1, budget)), draw(st.integers(1, slots)))


def search_settings(examples: int) -> settings:
    """Return settings with which only a seed decides what is drawn: no clock, no database, no profile."""
    return settings(
        max_examples=examples, phases=[Phase.generate, Phase.shrink], deadline=None, database=None,
        derandomize=False, verbosity=Verbosity.quiet, suppress_health_check=list(HealthCheck),
    )  # fmt: skip


_HIDDEN = AXES["width"][0]
"""Hidden size of the buffers that `check` makes."""
_CAPTURED = ArmSpec(capture=Capture.FULL)
_CHECKED_CAPACITIES = (1, 1, 2, 3, 4, 5, 7, 8, 13, 15, 16, 16, 16, 17, 20, 24, 31, 32, 33, 64, 65, 127, 128)
"""Rows of buffers that `check` makes; the first number is only drawn for the simplest example."""
_FEWER_READS = st.integers(0, 31).map(lambda number: number if number < 16 else number % 2 * 8)
"""Half of the phrases are not read, so that two calls follow each other."""
_SHORT, _LONG = (6, 16), (60, 80)
"""Least and most phrases: 40 and 250 steps on average."""
_DRAWN = ((EAGER, 96, _SHORT), (_CAPTURED, 64, _SHORT), (EAGER, 12, _LONG), (_CAPTURED, 12, _LONG))


@cache
def thorough_traces() -> tuple[str, ...]:
    """Return the traces of `check --thorough`, those of capacities as engines have last.

    Fixed seeds draw them, so that each run plays the same. All graphs are captured up front, with nothing
    set. Each trace has a seed of its own: among later examples of one seed are copies of earlier ones with
    small changes, so that 60 had 567 kinds of two steps in a row instead of 1,500.
    """
    drawn: list[Trace] = []
    for arm, count, lengths in _DRAWN:
        kinds = _kinds_of_phrases(alone=True) + ["replays"] * (8 if arm.captured else 0)
        phrases = _phrases(kinds, *lengths, _FEWER_READS)
        buffers = KINDS_WITH_DECODER if arm.captured else KINDS_ALONE
        traces = _traces(arm, _CHECKED_CAPACITIES, buffers, phrases, alone=True, hidden=_HIDDEN)
        drawn += (_second_example(traces, seed) for seed in range(count))
    return (*other_pairs(), *map(str, drawn), *THOROUGH_TRACES)


def _second_example(traces: SearchStrategy[Trace], seed: int) -> Trace:
    """Return the first trace that depends on the seed: the first example is the simplest one."""
    examples: list[Trace] = []

    def collect(trace: Trace) -> bool:
        examples.append(trace)
        return False

    with suppress(NoSuchExample):
        find(traces, collect, settings=search_settings(2), random=Random(seed))
    return examples[-1]
