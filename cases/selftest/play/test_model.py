"""Distances, owners of rows and cached outputs: what a model measures, and that it measured something."""

import math
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar

import pytest
import torch

from cases.selftest.play.playing import case_of
from deepstack_harness.contract.observation import NOT_FINITE, Answer, RowRange
from deepstack_harness.contract.protocols import Inputs
from deepstack_harness.errors import NotMeasured
from deepstack_harness.models.reference import ReferenceBuffer
from deepstack_harness.play import model
from deepstack_harness.play.model import Model, NumericsProbe, OutputCache, distance
from deepstack_harness.play.observe import play
from deepstack_harness.play.rows import RowOwners, join_answers


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ([1.0, 2.0], [1.0, 2.5], 0.5),
        ([1.0, math.nan], [1.0, 2.0], NOT_FINITE),
        ([1.0, math.inf], [1.0, 2.0], NOT_FINITE),
        ([1.0], [1.0, 2.0], NOT_FINITE),
        ([1.0, math.nan, math.inf], [1.5, math.nan, math.inf], 0.5),
        ([math.inf, 0.0], [-math.inf, 0.0], NOT_FINITE),
        ([math.nan, 1.0], [1.0, math.nan], NOT_FINITE),
    ],
)
def test_distance(one: list[float], other: list[float], expected: float) -> None:
    assert distance(torch.tensor(one), torch.tensor(other)) == expected
    assert distance(torch.tensor(other), torch.tensor(one)) == expected


def test_comparing_nothing_is_not_measured() -> None:
    with pytest.raises(NotMeasured, match="0 tokens"):
        distance(torch.empty(0, 4), torch.empty(0, 4))


def test_rows_find_their_owners() -> None:
    owners = RowOwners()
    first, second = torch.randn(2, 5, 4), torch.randn(2, 3, 4)
    owners.remember(1, first)
    owners.remember(2, second)
    owners.remember(-2, torch.full_like(second, 7.0))
    unknown = torch.full((1, 4), 3.0)
    rows = torch.cat(
        [second[1], first[0, 3:5], torch.zeros(2, 4), -torch.zeros(1, 4), torch.full((2, 4), 7.0), unknown]
    )
    assert owners.runs(rows) == (
        RowRange(2, 1, 0, 3),
        RowRange(1, 0, 3, 2),
        RowRange(0, 0, 0, 3),
        RowRange(-2, 0, 0, 2),
        RowRange(None, 0, 0, 1),
    )


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (lambda payload: payload.to(torch.bfloat16), (RowRange(1, 0, 0, 3),)),
        (lambda payload: payload.flip(0), tuple(RowRange(1, 0, row, 1) for row in (2, 1, 0))),
    ],
    ids=["in another dtype", "out of order"],
)
def test_rows_of_a_payload_find_their_owner(
    rows: Callable[[torch.Tensor], torch.Tensor], expected: tuple[RowRange, ...]
) -> None:
    owners, payload = RowOwners(), torch.randn(1, 3, 4)
    owners.remember(1, payload)
    assert owners.runs(rows(payload[0])) == expected


def test_answers_outlive_their_step_so_that_no_address_is_used_twice(qwen: Model) -> None:
    alive: list[bool] = []

    class Watching(ReferenceBuffer):
        answers: ClassVar[list[weakref.ref[torch.Tensor]]] = []

        def get(self, tokens: int) -> tuple[torch.Tensor, ...] | None:
            alive.extend(ref() is not None for ref in self.answers)
            answer = tuple(torch.zeros(tokens, qwen.family.hidden) for _ in range(3))
            self.answers.append(weakref.ref(answer[0]))
            return answer

    play(case_of("cap 16: get 4; get 4; get 4", "watching"), qwen, Watching)
    # Three gets: one result alive, then two, then three, seen from the later gets of both lanes.
    assert alive.count(True) >= 9


def test_outputs_of_other_shapes_agree_on_no_word() -> None:
    probe = NumericsProbe(torch.nn.Linear(1, 1), 2, 8)
    out = torch.ones(2, 8)
    assert (probe._agreement(out, out), probe._agreement(out, torch.ones(3, 8))) == (1.0, 0.0)


def test_rows_of_micro_batches_that_follow_each_other_are_one_run() -> None:
    first = Answer(
        "tensors", ((RowRange(1, 0, 0, 2),), (RowRange(0, 0, 0, 2),)), (8,), ("float32",), ("cpu",), (64,)
    )
    second = replace(first, rows=((RowRange(1, 0, 2, 3),), (RowRange(0, 0, 0, 1), RowRange(1, 1, 4, 1))))
    joined = join_answers([first, second])
    assert joined is not None
    assert joined.rows == (
        (RowRange(1, 0, 0, 5),), (RowRange(0, 0, 0, 3), RowRange(1, 1, 4, 1)),
    )  # fmt: skip
    again = join_answers([first, replace(second, rows=first.rows)])  # the same rows, not the rows after them
    assert again is not None
    assert again.rows[0] == (RowRange(1, 0, 0, 2), RowRange(1, 0, 0, 2))


def inputs(value: float, tokens: int = 3, dtype: torch.dtype = torch.float32) -> Inputs:
    return Inputs(
        torch.full((tokens, 2), value, dtype=dtype), torch.zeros(3, tokens, dtype=torch.int64), None
    )


class Counting:
    """Doubles hidden states (n, 2), and counts how often."""

    def __init__(self) -> None:
        self.runs = 0

    def __call__(self, given: Inputs) -> torch.Tensor:
        self.runs += 1
        return given.hidden * 2


def test_equal_content_is_run_once() -> None:
    cache, run = OutputCache(), Counting()
    answers = [cache.get(inputs(1), run) for _ in range(3)]
    assert run.runs == 1
    assert all(torch.equal(answer, inputs(2).hidden) for answer in answers)


def test_whatever_differs_is_run() -> None:
    cache, run = OutputCache(), Counting()
    given = inputs(1)
    moved = Inputs(given.hidden, given.positions + 1, None)
    every = [given, inputs(2), inputs(1, tokens=4), inputs(1, dtype=torch.bfloat16), moved]
    for different in every:
        assert torch.equal(cache.get(different, run), different.hidden * 2)
    assert run.runs == len(every)


def test_a_caller_that_reuses_its_memory_is_seen() -> None:
    cache, run, given = OutputCache(), Counting(), inputs(1)
    cache.get(given, run)
    given.hidden.fill_(5)
    assert torch.equal(cache.get(given, run), inputs(10).hidden)


def test_the_least_recently_used_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "_ENTRIES", 2)
    cache, run = OutputCache(), Counting()
    for value in (1, 2, 1, 3, 1):
        cache.get(inputs(value), run)
    assert run.runs == 3
    cache.get(inputs(2), run)
    assert run.runs == 4


def test_long_outputs_are_not_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "_ELEMENTS", 5)
    cache, run = OutputCache(), Counting()
    for _ in range(2):
        cache.get(inputs(1), run)
    assert run.runs == 2
