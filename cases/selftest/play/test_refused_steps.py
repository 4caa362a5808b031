"""Calls that nobody could make, and rows that are copies: refused with words for what would be right."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cases.specimens.programs import H, rows
from deepstack_harness import Call, UsageError, compile_steps


class Attends(nn.Module):
    """Linear layer with a bias by positions and an optional window."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(H, H)

    def forward(self, x: Tensor, positions: Tensor | None = None, *, window: int = 0) -> Tensor:
        """Return (n, H)."""
        x = self.layer(x)
        if positions is not None:
            x = x + positions[:, None]
        return x[window:] if window else x

    def shifted(self, x: Tensor, by: float) -> Tensor:
        """Return (n, H)."""
        shifted: Tensor = self.layer(x) + by
        return shifted


class Counts:
    """Callable object."""

    def __call__(self, x: Tensor, scale: float = 1.0) -> Tensor:
        """Return (n, H)."""
        return x * scale


def misspelt_keyword_of_a_module() -> tuple[Any, ...]:
    """`postions`."""
    return Attends(), [Call(rows(4)), Call(rows(4, 1), postions=torch.arange(4.0))]


def too_many_arguments_of_a_method() -> tuple[Any, ...]:
    """Three where two are taken."""
    return Attends().shifted, [(rows(4), 1.0), (rows(4, 1), 2.0, 3.0)]


def missing_argument_of_a_partial() -> tuple[Any, ...]:
    """`by` has no value."""
    return partial(Attends().shifted, rows(4)), [{"by": 1.0}, {}]


def misspelt_keyword_of_an_object() -> tuple[Any, ...]:
    """`scael`."""
    return Counts(), [Call(rows(4)), Call(rows(4), scael=2.0)]


def one_argument_twice() -> tuple[Any, ...]:
    """By position and by keyword."""
    return Counts(), [Call(rows(4)), Call(rows(4), 1.0, scale=2.0)]


def every_arm_raises() -> tuple[Any, ...]:
    """The first call of serving raises everywhere that guards are checked."""

    def adds(x: Tensor, mask: Tensor) -> Tensor:
        return x + mask

    return adds, [(rows(4), rows(4)), (rows(4), rows(4)[:, :3])]


def first_rows_mean(x: Tensor, count: int) -> Tensor:
    """Return (H,): the mean of all rows, which is wrong."""
    return x.mean(0) + 0 * count


def first_rows_only(x: Tensor, count: int) -> Tensor:
    """Return (H,): the mean of the first rows."""
    return x.narrow(0, 0, count).mean(0)


def neutral_by_a_mask(*, wrong: bool) -> tuple[Any, ...]:
    """Neutral rows chosen by a mask are a copy."""
    asked = {"neutral": lambda x, count: [x[torch.arange(len(x)) >= count]]}
    return (first_rows_mean if wrong else first_rows_only), [(rows(6), 3), (rows(6, 1), 3)], asked


def neutral_by_index_select() -> tuple[Any, ...]:
    """So are those of `index_select`."""
    asked = {"neutral": lambda x, **_: [x.index_select(0, torch.tensor([4, 5]))]}
    return first_rows_mean, [{"x": rows(6, seed), "count": 3} for seed in range(2)], asked


def neutral_of_nothing() -> tuple[Any, ...]:
    """A new tensor has nothing to do with the call."""
    return (
        first_rows_mean,
        [{"x": rows(6, seed), "count": 3} for seed in range(2)],
        {"neutral": lambda **_: [torch.zeros(3, H)]},
    )


_COPY = ("copy", "neutral")
REFUSED: dict[Callable[[], tuple[Any, ...]], tuple[str, ...]] = {
    misspelt_keyword_of_a_module: ("step 2", "'postions'", "'positions'"),
    too_many_arguments_of_a_method: ("step 2", "too many positional arguments"),
    missing_argument_of_a_partial: ("step 2", "'by'"),
    misspelt_keyword_of_an_object: ("step 2", "'scael'", "'scale'"),
    one_argument_twice: ("step 2", "'scale'"),
    partial(neutral_by_a_mask, wrong=True): _COPY,
    partial(neutral_by_a_mask, wrong=False): _COPY,
    neutral_by_index_select: _COPY,
    neutral_of_nothing: _COPY,
}


@pytest.mark.parametrize(("program", "words"), REFUSED.items())
def test_steps_are_refused_that_nobody_could_make(
    program: Callable[[], tuple[Any, ...]], words: tuple[str, ...]
) -> None:
    region, steps, *asked = program()
    with pytest.raises(UsageError) as refused:
        compile_steps(region, steps, arms=("eager/drop_all",), **(asked[0] if asked else {}))
    assert not [word for word in words if word not in str(refused.value)], refused.value


def test_a_step_that_raises_in_every_arm_puts_nothing_to_the_test() -> None:
    region, steps = every_arm_raises()
    judged = compile_steps(region, steps, arms=("eager/stock",))
    assert not judged.unjudged
    assert judged.good is False
    assert not any(finding.chances for finding in judged.rows)
    assert "step 2" in str(judged)
    assert "RuntimeError" in str(judged)
