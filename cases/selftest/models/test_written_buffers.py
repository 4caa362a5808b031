"""Right buffers that were written from nothing but the text of the contract pass."""

import pytest

from cases.selftest.models import right_buffers
from cases.selftest.models.checking import broken_in
from deepstack_harness.catalogue.pairs import daily_pairs, other_pairs
from deepstack_harness.catalogue.plans import check_traces
from deepstack_harness.contract.case import Regime


@pytest.mark.parametrize(("number", "name"), [*enumerate(right_buffers.RIGHT)])
def test_its_share_of_the_pairs_lets_a_right_buffer_pass(number: int, name: str) -> None:
    """Every day each pair is played on three of these buffers."""
    share = [pair for at, pair in enumerate(daily_pairs()) if (at - number) % len(right_buffers.RIGHT) < 3]
    assert broken_in(getattr(right_buffers, name), Regime.LIVE, share) == {}


@pytest.mark.slow  # 2 s each
@pytest.mark.parametrize("name", right_buffers.RIGHT)
def test_the_sample_and_all_pairs_let_a_right_buffer_pass(name: str) -> None:
    assert broken_in(getattr(right_buffers, name), Regime.LIVE, (*check_traces(), *other_pairs())) == {}
