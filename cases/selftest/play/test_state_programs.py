"""State in unusual places is found, named and put back; what cannot be judged has a reason."""

import itertools

import pytest
import torch

from cases.by_day import by_day
from cases.selftest.play.state_programs import CONTEXT, STATE, Counts, enclosing, settings
from cases.specimens.programs import rows
from deepstack_harness import Call, compile_steps
from deepstack_harness.play.region_state import state_of

ARMS = ("eager/drop_all",)


@pytest.mark.parametrize("name", by_day(list(STATE), count=12))
def test_state_that_changes_between_two_calls_is_named_and_put_back(name: str) -> None:
    make, change, place, why = STATE[name]
    calls = [Call(rows(3)), Call(rows(3))]
    same = compile_steps(make(), calls, arms=ARMS)
    changed = compile_steps(make(), [calls[0], change, calls[1]], arms=ARMS)
    assert not same.broken
    assert bool(same.unjudged) is bool(changed.unjudged) is bool(why), changed
    assert why in str(changed)
    assert [str(row.rule) for row in changed.broken] == (["I1"] if place else []), changed
    assert place in str(changed)
    assert (settings.scale, CONTEXT.get()) == (1.0, 1.0)


def test_an_iterator_that_advances_in_each_call_is_a_fault_without_any_change() -> None:
    region = Counts(itertools.count(1.0, 2.0))
    judged = compile_steps(region, [Call(rows(3)), Call(rows(3))], arms=ARMS)
    assert [str(row.rule) for row in judged.broken] == ["I1"]
    assert next(region.numbers) == 1.0


def test_a_function_next_to_a_region_changes_the_variable_of_its_copy() -> None:
    region = enclosing()
    compile_steps(region, [Call(rows(3)), lambda copy: copy.become(3.0), Call(rows(3))], arms=ARMS)
    assert state_of(region)["scale"] == 1.0
    assert torch.equal(region(rows(3)), rows(3))
