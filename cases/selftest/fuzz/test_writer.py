"""The writer of traces chooses counts where buffers broke, and pads them as engines do."""

import pytest

from deepstack_harness.fuzz.writer import breaking_counts, growing_counts, paddings


def test_counts_lie_where_buffers_broke() -> None:
    counts = breaking_counts(480)
    assert {0, 1, 2, 15, 16, 17, 479, 480, 329, 336, 76} <= {*counts}
    assert all(0 <= count <= 480 for count in counts)


@pytest.mark.parametrize("capacity", [1, 2, 16, 480])
def test_growing_counts_are_above_the_capacity(capacity: int) -> None:
    assert capacity + 1 in growing_counts(capacity)
    assert min(growing_counts(capacity)) > capacity


def test_paddings_are_those_of_engines() -> None:
    # The capture size, a multiple of 4 ranks, the largest of a data-parallel group, none.
    assert paddings(9, capacity=16, ranks=4) == (9, 12, 16)
    assert paddings(309, capacity=512) == (309, 320, 512)
