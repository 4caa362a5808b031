"""A sample of parameters for every day's run: the others are marked `slow`, and the night runs all."""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from typing import Any

import pytest


def by_day(
    values: Iterable[Any], kind: Callable[[Any], Hashable] = lambda _: None, *, count: int = 1
) -> list[Any]:
    """Return `values` for `parametrize`, with a mark on all but the first `count` of each kind.

    A value is one argument, a plain tuple of several, or a `pytest.param`, whose marks and id stay;
    `kind` takes it as it is.
    """
    seen: Counter[Hashable] = Counter()
    sample = []
    for value in values:
        seen[of := kind(value)] += 1
        marks = [pytest.mark.slow] if seen[of] > count else []
        if isinstance(value, _PARAMETERS):
            sample.append(value._replace(marks=[*value.marks, *marks]))
        else:
            sample.append(pytest.param(*(value if type(value) is tuple else [value]), marks=marks))
    return sample


_PARAMETERS = type(pytest.param())
