"""State that hides is found when it changes, or named as not judged; it is never passed as right."""

import pytest
import torch

from cases.by_day import by_day
from cases.selftest.play.hidden_state import HIDDEN
from cases.specimens.programs import rows
from deepstack_harness import Call, compile_steps

ARMS = "eager/drop_all"


@pytest.mark.parametrize("name", by_day(list(HIDDEN), count=12))
def test_a_change_of_hidden_state_is_found_or_not_judged(name: str) -> None:
    make, change, place, why, _ = HIDDEN[name]
    judged = compile_steps(make(1.0), [Call(rows(3)), change, Call(rows(3))], arms=ARMS)
    assert [str(row.rule) for row in judged.broken] == (["I1"] if place else []), judged
    assert bool(judged.unjudged) is bool(why), judged
    assert place in str(judged)
    assert why in str(judged)


@pytest.mark.parametrize(
    "name", by_day([name for name, hidden in HIDDEN.items() if hidden.holds and not hidden.why], count=6)
)
def test_a_tensor_in_the_same_place_is_read_again(name: str) -> None:
    scale = torch.tensor(1.0)
    steps = [Call(rows(3)), lambda _: scale.fill_(3.0), Call(rows(3))]
    judged = compile_steps(HIDDEN[name].make(scale), steps, arms=ARMS)
    assert not judged.broken, judged
    assert scale == 1.0
