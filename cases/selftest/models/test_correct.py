"""Right buffers of other designs are refused by no rule in the regimes in which they are right."""

from pathlib import Path

import pytest

from cases.selftest.models.checking import broken_in
from deepstack_harness.catalogue.buffers import CORRECT, buffer_named, read_correct
from deepstack_harness.contract.case import Regime
from deepstack_harness.contract.names import imported
from deepstack_harness.contract.rules import Rule
from deepstack_harness.models.reference import ReferenceBuffer

LIVE_ONLY = [name for name, one in CORRECT.items() if one.regimes == "live"]


@pytest.mark.parametrize("name", CORRECT)
def test_a_right_buffer_is_not_refused(name: str) -> None:
    assert broken_in(buffer_named(name), Regime.LIVE) == {}
    if name not in LIVE_ONLY:
        assert broken_in(buffer_named(name), Regime.CAPTURED) == {}


@pytest.mark.parametrize("name", LIVE_ONLY)
def test_one_that_is_right_live_alone_breaks_the_address_rule_under_graphs(name: str) -> None:
    assert Rule.R6 in broken_in(buffer_named(name), Regime.CAPTURED)


LITTLE_MEMORY = (
    "cap 16: set 9; get 24 fail={n}; get 9; get 16; resize 40 fail={n}; get 9; set 50 fail={n}; get 9",
    "cap 16: set 9; set 12 fail={n} dtype=float64; get 16; set 3; get 16; set 16 fail={n}; clear 16; get 16",
)
"""Allocations that fail while a buffer grows, and where it has not to."""


@pytest.mark.parametrize("name", CORRECT)
def test_one_that_runs_out_of_memory_is_not_refused(name: str) -> None:
    traces = [trace.format(n=number) for trace in LITTLE_MEMORY for number in (1, 2, 3, 5, 8)]
    assert broken_in(buffer_named(name), Regime.LIVE, traces) == {}


def test_there_are_eight_designs_none_of_which_is_the_references() -> None:
    assert len(CORRECT) >= 8
    for one in CORRECT.values():
        made_by = imported(one.target)
        assert isinstance(made_by, type)
        assert ReferenceBuffer not in made_by.__mro__
        assert one.regimes in {"live", "both"}


def test_a_class_has_to_say_in_which_regimes_it_is_right(tmp_path: Path) -> None:
    file = tmp_path / "correct.py"
    file.write_text("class Silent:\n    '''Says nothing.'''\n")
    with pytest.raises(ValueError, match="correct:Silent does not say in which regimes"):
        read_correct(file)
