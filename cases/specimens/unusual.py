"""Regions written in unusual ways: what reads a global, a class, a hook; what no copy can hold."""

import threading
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from cases.specimens.kit import Made, specimen
from cases.specimens.layers import Change
from cases.specimens.programs import rows

SETTINGS = {"scale": 1.0}
TABLE = torch.ones(8)
NUMBERS = np.ones(8, np.float32)
factor = 1.0


class Reads(nn.Module):
    """Reads globals in a method, a value of its class and a function in an attribute."""

    shift = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.act: Callable[[Tensor], Tensor] = torch.relu
        self.linear = nn.Linear(8, 8)

    @property
    def scale(self) -> float:
        return SETTINGS["scale"]

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.linear(x)) * self.scale * TABLE * factor + self.shift


def with_change(region: Callable[..., object], change: Change) -> Made:
    """Return a program with a change between two equal calls."""
    x = rows(3)
    return region, [(x,), change, (x,)]


def doubles(x: Tensor) -> Tensor:
    return x * 2


def calls_a_helper(x: Tensor) -> Tensor:
    return doubles(x) + 1


@specimen("I1", "doubles", words=("`doubles` was code doubles (line",))
def another_helper() -> Made:
    def change(_region: object) -> None:
        global doubles  # noqa: PLW0603  # what is tested
        doubles = torch.sin  # type: ignore[assignment]

    return with_change(calls_a_helper, change)


@specimen("I1", "SETTINGS", words=("`SETTINGS['scale']` was float 1.0 in the warm-up and is float 4.0 now",))
def member_of_a_global_in_a_property() -> Made:
    return with_change(Reads(), lambda _region: SETTINGS.update(scale=4.0))


@specimen("I1", "factor", words=("`factor` was float 1.0",))
def global_number_of_a_method() -> Made:
    def change(_region: object) -> None:
        global factor  # noqa: PLW0603  # what is tested
        factor = 3.0

    return with_change(Reads(), change)


@specimen("I1", "act", words=("`self.act` was code relu in the warm-up and is code tanh now",))
def another_function_in_an_attribute() -> Made:
    return with_change(Reads(), lambda region: setattr(region, "act", torch.tanh))


@specimen("I1", "shift", words=("`self.shift` was float 1.0 in the warm-up and is float 3.0 now",))
def value_of_the_class() -> Made:
    return with_change(Reads(), lambda region: setattr(type(region), "shift", 3.0))


@specimen(
    "I1", "_forward_hooks", "eager/stock eager/drop_all", words=("`self.linear._forward_hooks` was absent",)
)
def hook_that_changes_the_answer() -> Made:
    return with_change(
        Reads(), lambda region: region.linear.register_forward_hook(lambda _module, _args, answer: answer * 2)
    )


def by_default(x: Tensor, table: dict[str, float] = {"w": 1.0}) -> Tensor:  # noqa: B006  # what is tested
    return x * table["w"]


@specimen("I1", "table", words=("`table['w']` was float 1.0",))
def member_of_a_default() -> Made:
    def change(_region: object) -> None:
        assert by_default.__defaults__
        by_default.__defaults__[0]["w"] = 6.0

    return with_change(by_default, change)


@specimen()
def global_tensor_written_in_place() -> Made:
    return with_change(Reads(), lambda _region: TABLE.add_(1))


@specimen()
def global_array_written_in_place() -> Made:
    def adds_numpy(x: Tensor) -> Tensor:
        return x + torch.from_numpy(NUMBERS)

    return with_change(adds_numpy, lambda _region: NUMBERS.__setitem__(slice(None), 2))


class HoldsALock(nn.Module):
    """Has what Python cannot copy."""

    def __init__(self) -> None:
        super().__init__()
        self.lock, self.local = threading.Lock(), threading.local()

    def forward(self, x: Tensor) -> Tensor:
        return x * 2


@specimen()
def lock_that_no_copy_holds() -> Made:
    return HoldsALock(), [(rows(3),), (rows(3, 1),)]


@specimen()
def compiled_function() -> Made:
    return torch.compile(by_default, backend="eager"), [(rows(3),), (rows(3, 1),)]


@specimen()
def compiled_module() -> Made:
    return torch.compile(nn.Linear(8, 8), backend="eager"), [(rows(3),), (rows(3, 1),)]


class Rows(Tensor):
    """A tensor of a class that copies no tensor."""


@specimen()
def tensor_of_another_class() -> Made:
    return torch.sin, [(rows(3, seed).as_subclass(Rows),) for seed in range(2)]


@specimen()
def parametrised_weight() -> Made:
    return weight_norm(nn.Linear(8, 8)), [(rows(3),), (rows(3, 1),)]


@specimen()
def numbers_of_eight_bits() -> Made:
    def made_of_eight_bits(x: Tensor) -> Tensor:
        return x.float() * 2

    return made_of_eight_bits, [(rows(3, seed).to(torch.float8_e4m3fn),) for seed in range(2)]
