"""Decode steps are timed by turns: rows that a step does not have cost time.  Ratios of one run only."""

import pytest

from harness.kernels.costs import CostRow, Costs, StepCost, measure_costs

pytestmark = pytest.mark.xdist_group("inductor")


@pytest.mark.slow  # the C++ compiler takes half a minute for its two graphs
def test_whole_buffers_cost_more_than_slices() -> None:
    costs = measure_costs([64, 4096], [1], 1, layers=1)
    small, large = costs.steps
    assert [(step.capacity, step.tokens) for step in costs.steps] == [(64, 1), (4096, 1)]
    assert large.extra_rows > 2
    assert large.extra_rows > small.extra_rows
    assert large.zeros > 0.1


def test_a_row_has_both_ratios() -> None:
    costs = Costs(
        "granite4_vision", "inductor", "float32", "cpu", "2.13.0", 2, (StepCost(4096, 1, 6.0, 3.0, 2.0),)
    )
    row = CostRow.of(costs, costs.steps[0])
    assert (row.kind, row.full_to_sliced, row.zeros_to_skipped) == ("cost", 2.0, 1.5)
    assert (row.full_seconds, row.sliced_seconds, row.skipped_seconds) == (6.0, 3.0, 2.0)
