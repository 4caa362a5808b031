"""The one walk of state: every place has a path, a value, and something that puts another value there."""

import collections
import functools
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

from deepstack_harness.compile.members import GONE, StatePlace, places

LIMIT = 1


class Plain:
    """An object with one attribute."""

    def __init__(self, value: object) -> None:
        self.value = value


class OfTheClass:
    """An object whose class has the attribute."""

    value = 1


@dataclass(frozen=True, slots=True)
class Frozen:
    """An object that refuses to be written to."""

    value: object = 1


class Pair(NamedTuple):
    """A tuple with names."""

    left: int
    right: int


def limited() -> int:
    """Return a global."""
    return LIMIT


def _ring() -> list[Any]:
    ring: list[Any] = [1]
    ring.append(ring)
    return ring


def _known() -> Plain:
    held = Plain(1)
    return Plain([held, weakref.ref(held)])


ROOTS: dict[str, tuple[Callable[[], object], str]] = {
    "attribute": (lambda: Plain(1), "root.value"),
    "attribute of a class": (OfTheClass, "root.value"),
    "frozen slot": (Frozen, "root.value"),
    "key": (lambda: {"a b": {3: 1}}, "root['a b'][3]"),
    "member": (lambda: collections.deque([0, 1]), "root[1]"),
    "member of a tuple in a list": (lambda: [(0, (1, 2))], "root[0][1][0]"),
    "member with a name": (lambda: [Pair(1, 2)], "root[0].left"),
    "global of a function": (lambda: limited, "LIMIT"),
    "keyword of a partial": (lambda: functools.partial(int, base=1), "base"),
    "default": (lambda: functools.partial(lambda value=1: value), "root.__defaults__[0]"),
    "weak reference": (_known, "root.value[0].value"),
    "list in itself": (_ring, "root[0]"),
    "child of a module": (lambda: nn.ModuleDict({"a-b": nn.Dropout(1)}), "root.a-b.p"),
}


@pytest.mark.parametrize("name", ROOTS)
def test_a_place_is_read_and_written(name: str) -> None:
    make, path = ROOTS[name]
    root = make()

    def find() -> StatePlace:
        return next(place for place in places([StatePlace("root", root)]) if place.path == path)

    assert find().value == 1
    find().write(7)
    assert find().value == 7
    find().write(1)


def test_an_object_is_followed_once_and_a_container_by_each_path() -> None:
    shared, held = [1], Plain(2)
    found = {place.path for place in places([StatePlace("root", [shared, shared, held, held])])}
    assert {"root[0][0]", "root[1][0]", "root[2].value"} <= found
    assert "root[3].value" not in found


def test_what_is_taken_away_is_gone() -> None:
    root = Plain({"a": 1, "b": 2})
    found = {place.path: place for place in places([StatePlace("root", root)])}
    found["root.value['a']"].write(GONE)
    assert root.value == {"b": 2}
    found["root.value"].write(GONE)
    assert not hasattr(root, "value")


def test_a_parameter_stays_one() -> None:
    root = nn.Linear(2, 2)
    found = {place.path: place for place in places([StatePlace("root", root)])}
    found["root.weight"].write(torch.zeros(2, 2))
    assert isinstance(root.weight, nn.Parameter)
    assert not root.weight.any()


def test_sizes_and_code_are_not_followed_where_only_items_and_attributes_are_wanted() -> None:
    root = Plain([limited, weakref.ref(nn.Linear(1, 1)), OfTheClass()])
    found = [place.path for place in places([StatePlace("root", root)], whole=False)]
    assert found == ["root", "root.value", "root.value[0]", "root.value[1]", "root.value[2]"]


def test_nothing_is_put_into_a_set_or_an_unnamed_tuple() -> None:
    for root in ({1}, (1,)):
        place = next(place for place in places([StatePlace("root", root)]) if place.path == "root[0]")
        with pytest.raises(TypeError, match="nothing is written here"):
            place.write(2)
