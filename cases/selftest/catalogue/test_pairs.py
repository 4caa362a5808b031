"""The covering array: every pair of values of two axes is in one of its rows, and every trace can be read."""

from itertools import combinations

import pytest

from cases.selftest.models.checking import broken_in
from deepstack_harness.catalogue.pairs import (
    AXES,
    DAILY,
    axes_of,
    covering_array,
    daily_pairs,
    other_pairs,
)
from deepstack_harness.contract.case import Regime
from deepstack_harness.contract.trace import Trace
from deepstack_harness.models.reference import ReferenceBuffer


def test_every_pair_of_two_values_is_in_a_row() -> None:
    wanted = sum(len(AXES[first]) * len(AXES[other]) for first, other in combinations(AXES, 2))
    rows = [*covering_array()]
    pairs = {
        ((first, row[first]), (other, row[other])) for row in rows for first, other in combinations(AXES, 2)
    }
    assert len(pairs) == wanted
    assert len(rows) < wanted / 20


def test_every_value_is_in_a_trace_of_the_daily_sample() -> None:
    daily = [*covering_array()][:DAILY]
    lacking = {axis: {*values} - {row[axis] for row in daily} for axis, values in AXES.items()}
    assert {axis: values for axis, values in lacking.items() if values} == {}


def test_the_traces_can_be_read_and_are_all_different() -> None:
    traces = [*daily_pairs(), *other_pairs()]
    assert len({str(Trace.parse(text)) for text in traces}) == len(traces) == len([*covering_array()])


@pytest.mark.parametrize(
    ("text", "axes"),
    [
        ("cap 16: set 9; get 16; clear 16; resize 20; reload", set()),
        ("cap 16 levels 2 hidden 6 dtype float64 mode inference buffers 2: get 4 on=b",
         {"levels", "width", "buffer dtype", "mode", "second buffer"}),
        ("cap 16: set 9 layout=sparse dtype=float64 values=nan grad",
         {"layout", "payload dtype", "values", "gradient"}),
        ("cap 16: set 9 dtype=int32; set 2 shape=flat; get 4 calls=20", {"integers", "wrong shape", "calls"}),
        ("cap 16: set 9 levels=2", set()),
        ("cap 16: set 9 levels=2 hidden=3; get 4 after=60; get 4 fail=1",
         {"wrong shape", "time", "failing allocation"}),
        ("cap 33000: get 2", {"many rows"}),
        ("cap 16: set 9 spans=0-2; get 1 count=numpy", {"spans"}),
    ],
)  # fmt: skip
def test_the_axes_of_a_trace(text: str, axes: set[str]) -> None:
    assert axes_of(Trace.parse(text)) == axes


def test_the_reference_passes_everything_on_the_daily_pairs() -> None:
    assert broken_in(ReferenceBuffer, Regime.LIVE, daily_pairs()) == {}
