"""A layer whose attributes, modes and weights change, and functions whose arguments do, right and wrong."""

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from cases.specimens.kit import Made, specimen
from cases.specimens.programs import by_stride, from_dict, rows
from deepstack_harness import Call

Change = Callable[[Any], object]


class Layer(nn.Module):
    """A linear layer with a factor, a scale and a mode, inside of which nothing reads the mode."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.factor = 2
        self.scale = torch.ones(8)

    def forward(self, x: Tensor, payload: Tensor | None = None) -> Tensor:
        """Return hidden states (n, 8)."""
        hidden: Tensor = self.linear(x) * self.factor * self.scale
        return hidden if payload is None else hidden + payload


class Around(nn.Module):
    """A layer and modules of torch inside another module."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Layer()
        self.gelu = nn.GELU()

    def forward(self, x: Tensor) -> Tensor:
        """Return (n, 8)."""
        return torch.relu(self.gelu(self.inner(x)))


class Reader(nn.Module):
    """A layer that reads the factor of the module it is in, which it refers to weakly, as callbacks do."""

    def __init__(self, owner: nn.Module) -> None:
        super().__init__()
        self.owner = weakref.ref(owner)

    def forward(self, x: Tensor) -> Tensor:
        """Return (n, 8)."""
        owner: Any = self.owner()
        return x * int(owner.factor)


class Owner(nn.Module):
    """A factor, and a member that reads it."""

    def __init__(self, factor: int = 2) -> None:
        super().__init__()
        self.factor = factor
        self.reader = Reader(self)

    def forward(self, x: Tensor) -> Tensor:
        """Return (n, 8)."""
        y: Tensor = self.reader(x)
        return y


OWNER = Owner()
"""Lives as long as this module: copies of a region must not read it."""


class Weighted(nn.Module):
    """A product with a weight of any dtype; int8 is a quantised weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((8, 8), 2.0), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return (n, 8)."""
        weight = self.weight.to(x.dtype)
        return x @ (weight / 127 if self.weight.dtype == torch.int8 else weight)


class Doubled(Tensor):
    """A subclass of Tensor that changes nothing."""


def by_subclass(x: Tensor) -> Tensor:
    return x * 2 if isinstance(x, Doubled) else x * 1


def changed(region: nn.Module, change: Change, *early: Change) -> Made:
    """Return a program whose region is changed between two calls on equal rows."""
    return region, [*early, (rows(3),), change, (rows(3),)]


def assigned(name: str, value: object) -> Change:
    """Return a step that assigns an attribute, which may be one of a member: `inner.factor`."""
    path, _, attribute = name.rpartition(".")
    return lambda region: setattr(region.get_submodule(path), attribute, value)


@specimen("I2", "weight")
def quantised_parameter() -> Made:
    weight = nn.Parameter(torch.full((8, 8), 127, dtype=torch.int8), requires_grad=False)
    return changed(Weighted(), assigned("weight", weight))


@specimen("I1", "factor")
def attribute_of_a_submodule() -> Made:
    return changed(Around(), assigned("inner.factor", -3))


@specimen("I1", "factor")
def attribute_behind_a_weak_reference() -> Made:
    return changed(OWNER, assigned("factor", -3))


@specimen()
def attribute_that_no_weak_reference_leads_to() -> Made:
    return changed(Owner(), assigned("unread", -3))


@specimen("I1", "approximate")
def attribute_of_a_module_of_torch() -> Made:
    return changed(Around(), assigned("gelu.approximate", "tanh"))


@specimen("I1", "factor")
def after_a_failure_that_means_nothing() -> Made:
    region, steps = changed(Layer().eval(), assigned("factor", 3))
    return region, [steps[0], nn.Module.train, *steps]


@specimen("I1", "x")
def other_subclass() -> Made:
    return by_subclass, [(rows(3),), (rows(3).as_subclass(Doubled),)]


@specimen("I2", "x", words=("and is float32 tensor [3, 8] on cpu with requires_grad now",))
def late_requires_grad() -> Made:
    return (lambda x: x * 2 if x.requires_grad else x), [(rows(3),), (rows(3).requires_grad_(),)]


@specimen("I1", "parts")
def order_of_a_dict() -> Made:
    def chain(parts: dict[str, Tensor]) -> Tensor:
        total = torch.zeros(3, 8)
        for part in parts.values():
            total = total * 2 + part
        return total

    first, second = rows(3), rows(3, 1)
    return chain, [({"a": first, "b": second},), ({"b": second, "a": first},)]


LIMIT = 0.1


def clamp(x: Tensor) -> Tensor:
    return x.clamp(max=LIMIT)


def _raise_limit(_region: object) -> None:
    global LIMIT  # noqa: PLW0603  # it is what this program is about
    LIMIT = 0.7


@specimen("I1", "LIMIT")
def global_number() -> Made:
    return clamp, [(rows(3),), _raise_limit, (rows(3),)]


@specimen("I1", "x")
def branch_on_the_number_of_elements() -> Made:
    return (lambda x: x * 2 if x.numel() < 48 else x), [(rows(8),), (rows(5),)]


@specimen("I1", "x")
def branch_on_two_sizes() -> Made:
    def compare(x: Tensor, y: Tensor) -> Tensor:
        return x.sum(0) - y.sum(0) if x.shape[0] < y.shape[0] else y.sum(0)

    return compare, [(rows(8), rows(5)), (rows(5), rows(8))]


@specimen("I1", "x")
def branch_on_one_row() -> Made:
    """The only guard is the bound of torch's 0/1 specialisation."""
    return (lambda x: x - 1 if x.shape[0] == 1 else x), [(rows(8),), (rows(1),)]


@specimen("I1", "x")
def second_of_two_size_branches() -> Made:
    def double_many(x: Tensor) -> Tensor:
        x = x + 0 if x.shape[0] > 10 else x * 1
        return x * 2 if x.shape[0] > 100 else x

    return double_many, [(rows(20),), (rows(8),), (rows(200),)]


@specimen("I1", "memory")
def one_tensor_then_two() -> Made:
    same = rows(3)
    return (lambda x, memory: x + 2 * memory), [(same, same), (same, rows(3, 1))]


@specimen("I1", "memory")
def two_tensors_then_one() -> Made:
    same = rows(3)
    return (lambda x, memory: x * 3 if x is memory else x + memory), [(same, rows(3, 1)), (same, same)]


@specimen()
def a_number_in_a_tensor() -> Made:
    return changed(Layer(), assigned("scale", torch.full((8,), 3.0)))


@specimen()
def a_buffer_written_in_place() -> Made:
    return changed(Layer(), lambda layer: layer.scale.fill_(3.0))


@specimen()
def mode_that_nothing_reads() -> Made:
    return Around().eval(), [(rows(3),), lambda around: around.inner.train(), (rows(3, 1),)]


@specimen()
def parameter_in_place_of_a_tensor() -> Made:
    return by_subclass, [(rows(3),), (nn.Parameter(rows(3, 1), requires_grad=False),)]


@specimen()
def contiguous_before_the_call() -> Made:
    return by_stride, [(rows(8),), (rows(8, 1).t().contiguous(),)]


@specimen()
def same_keys_in_another_dict() -> Made:
    return from_dict, [(rows(3), {"image": rows(3, 1)}), (rows(3), {"image": rows(3, 2)})]


@specimen()
def closure_of_a_tensor() -> Made:
    sign = torch.ones(1)

    def turn(x: Tensor) -> Tensor:
        return x * sign

    return turn, [(rows(3),), lambda _region: sign.fill_(-1), (rows(3),)]


OTHER = 5


def _change_another(_region: object) -> None:
    global OTHER  # noqa: PLW0603  # it is what this program is about
    OTHER = 7


@specimen()
def another_global_changes() -> Made:
    return clamp, [(rows(3),), _change_another, (rows(3, 1),)]


@specimen()
def one_token_decodes() -> Made:
    late = [Call(rows(1, seed), payload=rows(1, 9 + seed)) for seed in range(3)]
    return Layer(), [Call(rows(8), payload=rows(8, 1)), *late]


@specimen()
def sizes_on_the_same_side() -> Made:
    calls = [(rows(n),) for n in (8, 2, 50, 99, 100)]
    return (lambda x: x * 2 if x.shape[0] > 100 else x), calls


@specimen()
def one_tensor_and_another() -> Made:
    same, other = rows(3), rows(3, 1)
    return (lambda x, memory: x + 2 * memory), [(same, same), (other, other)]


@specimen()
def two_tensors_that_become_one() -> Made:
    same = rows(3)
    return (lambda x, memory: x + 2 * memory), [(same, rows(3, 1)), (same, same)]


@specimen()
def same_numbers_in_another_list() -> Made:
    return (lambda x, by: x * by[0] + by[1]), [(rows(3, seed), [2.0, 3.0]) for seed in range(2)]
