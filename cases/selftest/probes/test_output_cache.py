"""Outputs that are kept: by content, no longer than there is room, and not for large inputs."""

import pytest
import torch

from deepstack_harness.contract.protocols import Inputs
from deepstack_harness.probes import output_cache
from deepstack_harness.probes.output_cache import OutputCache


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
    assert all(torch.equal(one, inputs(2).hidden) for one in answers)


def test_whatever_differs_is_run() -> None:
    cache, run = OutputCache(), Counting()
    given = inputs(1)
    moved = Inputs(given.hidden, given.positions + 1, None)
    every = [given, inputs(2), inputs(1, tokens=4), inputs(1, dtype=torch.bfloat16), moved]
    for one in every:
        assert torch.equal(cache.get(one, run), one.hidden * 2)
    assert run.runs == len(every)


def test_a_caller_that_reuses_its_memory_is_seen() -> None:
    cache, run, given = OutputCache(), Counting(), inputs(1)
    cache.get(given, run)
    given.hidden.fill_(5)
    assert torch.equal(cache.get(given, run), inputs(10).hidden)


def test_the_least_recently_used_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_cache, "_ENTRIES", 2)
    cache, run = OutputCache(), Counting()
    for value in (1, 2, 1, 3, 1):
        cache.get(inputs(value), run)
    assert run.runs == 3
    cache.get(inputs(2), run)
    assert run.runs == 4


def test_long_outputs_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_cache, "_ELEMENTS", 5)
    cache, run = OutputCache(), Counting()
    for _ in range(2):
        cache.get(inputs(1), run)
    assert run.runs == 2
