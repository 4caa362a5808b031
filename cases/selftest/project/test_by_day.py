"""The sample of each day: the first values of each kind, with the marks and ids that they have."""

from typing import Any

import pytest

from cases.by_day import by_day
from deepstack_harness.contract.observation import RowRange


def marks_of(sample: list[Any]) -> list[tuple[object, list[str]]]:
    return [(parameter.values, [mark.name for mark in parameter.marks]) for parameter in sample]


def test_all_but_the_first_of_each_kind_are_slow() -> None:
    assert marks_of(by_day(["a1", "b1", "a2", "a3"], lambda name: name[0], count=2)) == [
        (("a1",), []), (("b1",), []), (("a2",), []), (("a3",), ["slow"]),
    ]  # fmt: skip
    assert marks_of(by_day([(1, 2), (3, 4)])) == [((1, 2), []), ((3, 4), ["slow"])]
    one, other = RowRange(1, 0, 0, 1), RowRange(2, 0, 0, 1)
    assert marks_of(by_day([one, other])) == [((one,), []), ((other,), ["slow"])]


def test_marks_and_ids_stay() -> None:
    first, second = by_day([0, pytest.param(1, id="one", marks=pytest.mark.network)])
    assert (first.id, second.id) == (None, "one")
    assert marks_of([second]) == [((1,), ["network", "slow"])]
