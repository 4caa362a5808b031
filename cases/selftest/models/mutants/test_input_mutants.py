"""Mutants of unusual payloads and histories: caught by their rule alone, on the traces of `check`."""

import inspect

import pytest

from cases.selftest.models.checking import broken_in
from cases.selftest.models.mutants.test_mutants import TRACES
from cases.selftest.play.playing import broken, judge
from deepstack_harness.catalogue.buffers import INPUT_MUTANTS, buffer_named
from deepstack_harness.contract.arm import EAGER
from deepstack_harness.contract.case import Compare, Regime
from deepstack_harness.contract.names import imported
from deepstack_harness.play.model import Model

ALSO_ON_PLAIN_TRACES = {
    "wider_when_empty", "one_scratch", "overstates_capacity", "zeroes_callers_tensor", "parts_never_end",
    "forgets_before_it_grows", "resize_makes_no_room", "cuts_at_resize_below_n", "empty_expanded",
    "cuts_hidden", "stores_nan_in_callers_tensor",
}  # fmt: skip
"""Those that the older traces catch too, now that widths, earlier answers and strides are compared."""


@pytest.mark.parametrize("name", INPUT_MUTANTS)
def test_a_mutant_is_caught_by_its_rule_and_by_no_other(name: str) -> None:
    assert set(broken_in(buffer_named(name), Regime.LIVE)) == {INPUT_MUTANTS[name].rule}


@pytest.mark.parametrize("name", sorted(INPUT_MUTANTS.keys() - ALSO_ON_PLAIN_TRACES))
def test_nothing_but_the_new_inputs_catches_it(qwen: Model, name: str) -> None:
    found = (broken(judge(qwen, trace, name, EAGER, Compare.NOTHING)) for trace in TRACES["eager"])
    assert set().union(*found) == set()


@pytest.mark.parametrize("name", INPUT_MUTANTS)
def test_the_index_says_what_the_class_says(name: str) -> None:
    mutant = INPUT_MUTANTS[name]
    made_by = imported(mutant.target)
    assert (inspect.getdoc(made_by) or "").startswith(mutant.summary)
    assert mutant.summary.endswith(".")
    assert mutant.target.partition(":")[0].endswith(f".{mutant.rule.lower()}")
