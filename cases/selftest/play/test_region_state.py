"""The state of a region is written back to every place that has a name, whatever the name."""

import functools
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from deepstack_harness.play.region_calls import arguments_of, as_call, values_left
from deepstack_harness.play.region_state import make_equal, set_value, state_of


class Slotted:
    """Object without a `__dict__`."""

    __slots__ = ("scale",)

    def __init__(self) -> None:
        self.scale = 1.0


class Odd(nn.Module):
    """Has children, attributes and keys whose names Python does not write."""

    def __init__(self) -> None:
        super().__init__()
        self.stack = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
        self.by_key = nn.ModuleDict({"a-b (c)": nn.BatchNorm1d(2), "class": nn.BatchNorm1d(2)})
        self.add_module("0", nn.BatchNorm1d(2))
        self.register_buffer("10", torch.zeros(2))
        setattr(self, "dotted.name", 3)
        self.options: dict[Any, Any] = {"k]['": [1, 2.0], 3: {"x": 4}, ("t", 1): 5, "pair": (1, (2, 3))}
        self.slotted = Slotted()
        self.weights = nn.ParameterList([nn.Parameter(torch.ones(2))])

    def forward(self, x: Tensor) -> Tensor:
        """Return x."""
        return x


def _free(scale: float) -> Any:  # noqa: ANN401  # a closure
    state, table = 1.0, {"w": [1, 2]}

    def run(x: Tensor, by: float = 1.0) -> Tensor:
        return x * state * table["w"][0] * by * scale

    return run


REGIONS: dict[str, Any] = {
    "odd names": Odd(),
    "closure": _free(2.0),
    "partial": functools.partial(_free(2.0), by=3.0),
    "method": Odd().forward,
}


@pytest.mark.parametrize("name", REGIONS)
def test_every_value_is_written_at_its_own_name(name: str) -> None:
    region = REGIONS[name]
    written = 0
    for place, value in state_of(region).items():
        if place.endswith(" (its length)"):
            continue
        if isinstance(value, int | float) and not isinstance(value, bool):
            set_value(region, place, value + 7)
            assert state_of(region)[place] == value + 7, place
            written += 1
        elif isinstance(value, Tensor):
            set_value(region, place, torch.full((5,), 7.0))
            assert torch.equal(torch.as_tensor(state_of(region)[place]), torch.full((5,), 7.0)), place
            written += 1
    assert written >= 3


def test_what_is_missing_comes_back_and_what_is_new_goes() -> None:
    wanted, actual = Odd(), Odd()
    call = as_call({"x": torch.ones(2)})
    before = values_left(wanted, call, None)
    actual.options["k]['"].append(9)
    del actual.options[("t", 1)]
    delattr(actual, "dotted.name")
    setattr(actual, "new one", 3)
    actual.stack[1].get_buffer("running_mean").add_(1)
    left = values_left(actual, call, None)
    places = [name for name in {**before, **left} if name not in left or name not in before]
    places += [name for name in before if name in left and _differ(before[name], left[name])]
    assert len(places) >= 5
    make_equal(actual, arguments_of(actual, call), before, left, places)
    after = values_left(actual, call, None)
    assert after.keys() == before.keys()
    assert not [name for name in before if _differ(before[name], after[name])]


def test_the_length_of_a_list_is_written_and_that_of_a_tuple_is_not() -> None:
    region = Odd()
    set_value(region, 'self.options["k][\'"] (its length)', 3)
    assert region.options["k]['"] == [1, 2.0, None]
    with pytest.raises(TypeError, match="a tuple of another size"):
        set_value(region, "self.options['pair'] (its length)", 3)


def _differ(one: object, other: object) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return not torch.equal(one, other)
    return one != other
