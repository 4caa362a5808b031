"""Strategies draw what they say: counts in range and where buffers broke, traces that parse back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepstack_harness.catalogue.workload import ScheduledStep
from deepstack_harness.contract.trace import READS_BUFFER, Op, Step, Trace
from deepstack_harness.fuzz.strategies import (
    REPORTED_PAIRS,
    breaking_counts,
    engine_traces,
    growing_counts,
    padded,
    paddings,
    pairs,
    schedules,
    steps,
    token_counts,
    traces,
)


def test_counts_lie_where_buffers_broke() -> None:
    counts = breaking_counts(480, ranks=6)
    assert {0, 1, 2, 15, 16, 17, 479, 480, 5, 6, 7, 329, 336, 76} <= {*counts}
    assert all(0 <= count <= 480 for count in counts)


@pytest.mark.parametrize("capacity", [1, 2, 16, 480])
def test_growing_counts_are_above_the_capacity(capacity: int) -> None:
    assert capacity + 1 in growing_counts(capacity)
    assert min(growing_counts(capacity)) > capacity


@given(st.integers(1, 480).flatmap(lambda most: st.tuples(st.just(most), token_counts(most, 4))))
def test_token_counts_stay_within_the_capacity(drawn: tuple[int, int]) -> None:
    assert 0 <= drawn[1] <= drawn[0]


def test_paddings_are_those_of_engines() -> None:
    # The capture size, a multiple of 4 ranks, the largest of a data-parallel group, none.
    assert paddings(9, capacity=16, ranks=4) == (9, 12, 16)
    assert paddings(309, capacity=512) == (309, 320, 512)


@given(padded(9, 16, 4))
def test_nothing_is_padded_to_less(wanted: int) -> None:
    assert wanted >= 9


@given(pairs(480, 8))
def test_pairs_ask_for_what_was_set_or_more(pair: tuple[int, int]) -> None:
    assert pair[0] <= pair[1]


def test_reported_pairs_are_drawn_as_far_as_they_fit() -> None:
    drawn = set()

    @given(pairs(80))
    def collect(pair: tuple[int, int]) -> None:
        drawn.add(pair)

    collect()
    assert set(REPORTED_PAIRS) & drawn == {pair for pair in REPORTED_PAIRS if pair[1] <= 80}


@given(traces(capacity=16))
def test_a_drawn_trace_reads_every_row_after_every_step_and_parses_back(trace: Trace) -> None:
    assert Trace.parse(str(trace)) == trace
    assert all(step == Step(Op.GET, 16) for step in trace.steps[::2])


@given(engine_traces(capacity=16))
def test_an_engine_in_order_profiles_first_and_runs_behind_every_set(trace: Trace) -> None:
    assert trace.steps[0] == Step(Op.PROFILE, 16)
    for step, following in zip(trace.steps, trace.steps[1:], strict=False):
        if step.op is Op.SET:
            assert following.op in READS_BUFFER
            assert following.tokens >= step.tokens


@given(steps(capacity=16, bad=False))
def test_good_steps_are_good(step: Step) -> None:
    assert step.tokens >= 0
    assert (step.levels, step.hidden) == (None, None)


@given(schedules(budget=16))
def test_schedules_keep_their_budget(done: list[ScheduledStep]) -> None:
    assert all(1 <= step.tokens <= 16 for step in done)
