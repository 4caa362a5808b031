"""Stand-ins, and readers of what cut code shows to them, called as the code of a release may call them."""

from collections.abc import Callable

import pytest
import torch

from deepstack_harness.engines.bind import levels_of
from deepstack_harness.engines.bound_class import rehearsing
from deepstack_harness.engines.cut_model import CannotSupply, Refused
from deepstack_harness.engines.stand_ins import IntermediateTensors, Mirrors
from deepstack_harness.errors import Reason, UsageError


def test_named_tensors_are_looked_up_sliced_and_replaced_by_name() -> None:
    """Use named tensors in each way that those of vllm/sequence.py can be used."""
    first, second = torch.ones(4, 2), torch.zeros(4, 2)
    named = IntermediateTensors({"a": first})
    named["b"] = second
    assert named["a"] is first
    assert len(named) == 2
    cut = named[1:3]
    assert isinstance(cut, IntermediateTensors)
    assert [(name, rows.tolist()) for name, rows in cut.items()] == [
        ("a", first[1:3].tolist()),
        ("b", second[1:3].tolist()),
    ]


@pytest.mark.parametrize("use", [lambda refused: refused(1, key=2), lambda refused: refused.attribute])
def test_a_refused_object_says_why_however_it_is_used(use: Callable[[object], object]) -> None:
    with pytest.raises(CannotSupply, match=r"^a\.py:3: why$"):
        use(Refused(Reason("why", "a.py", 3)))


def test_a_tensor_without_storage_needs_no_copy() -> None:
    shown = torch.empty(3, 2, device="meta")
    assert Mirrors().of(shown) is shown


@pytest.mark.parametrize(
    ("dirty", "said"),
    [(0, "adds 2 rows before the first layer"), (3, "adds 2 rows after layer 2, where no level belongs")],
)
def test_rows_that_belong_to_no_level_are_told(dirty: int, said: str) -> None:
    """Give rows of two levels, which belong after layers 0 and 1, and rows elsewhere."""
    given = [torch.zeros(3, 2) for _ in range(4)]
    assert len(levels_of(tuple(given), 2)) == 2
    given[dirty][1:, 0] = 5
    with pytest.raises(RuntimeError, match=said):
        levels_of(tuple(given), 2)


@pytest.mark.parametrize("ends", [KeyboardInterrupt, SystemExit])
def test_a_rehearsal_swallows_an_exit_of_the_code_and_never_ctrl_c(ends: type[BaseException]) -> None:
    came = False
    try:
        with rehearsing(lambda error: UsageError(str(error))):
            raise ends
    except KeyboardInterrupt:
        came = True
    assert came == (ends is KeyboardInterrupt)
