"""What calls change is put back into the user's own objects; what cannot be is not judged, with its name."""

import pytest

from cases.selftest.play.restored_programs import RESTORED
from deepstack_harness import compile_steps

ARMS = ("eager/drop_all",)


@pytest.mark.parametrize("name", RESTORED)
def test_state_that_no_copy_holds_is_judged_or_named(name: str) -> None:
    make, breaks, names, why = RESTORED[name]
    region, steps = make()
    judged = compile_steps(region, steps, arms=ARMS)
    assert bool(judged.unjudged) is bool(why), judged
    assert why in str(judged.unjudged)
    assert " ".join(str(row.rule) for row in judged.broken) == breaks, judged
    assert names in str(judged)
