"""vLLM #40143: placeholder ranges as tensor and as list, whether they count right and what they cost."""

from collections.abc import Mapping
from functools import cache

import pytest

from deepstack_harness.audit.cut_systems import RANGES_CLASS
from deepstack_harness.audit.ranges import (
    BoundRange,
    ListRange,
    MakeRange,
    TensorRange,
    bind_range,
    geo3k,
    observe_ranges,
    range_named,
    step_costs,
)
from deepstack_harness.catalogue.registry import PLACEHOLDER_RANGES
from deepstack_harness.contract.facts import System, SystemSubject
from deepstack_harness.contract.oracles.neighbours import judge_ranges as judge
from deepstack_harness.contract.verdicts import Judgement, Verdict
from deepstack_harness.engines.known import open_source

OURS: Mapping[str, MakeRange] = {"tensor": TensorRange, "list": ListRange}


def judged(make: MakeRange, name: str) -> tuple[str, Judgement]:
    """In what the sum is kept, and what R12 says."""
    seen = observe_ranges(SystemSubject(System.PLACEHOLDER_RANGES, name, RANGES_CLASS), make)
    return seen.kept_as, judge(seen)


@pytest.mark.parametrize("name", PLACEHOLDER_RANGES)
def test_each_fault_is_caught_and_each_correct_revision_passes(name: str) -> None:
    _, found = judged(range_named(name), name)
    assert found.verdict is (Verdict.FAIL if PLACEHOLDER_RANGES[name].fault else Verdict.PASS), found


def test_a_scheduling_step_is_at_least_three_times_cheaper_with_lists() -> None:
    tensor, listed = step_costs(OURS, geo3k(), repetitions=21)
    assert tensor.microseconds >= 3 * listed.microseconds, (tensor, listed)


@cache
def bound(release: str) -> BoundRange:
    return bind_range(open_source(f"vllm=={release}"))


RELEASES = {
    "0.16.0": ("tensor", Verdict.FAIL),
    "0.19.1": ("tensor", Verdict.FAIL),
    "0.20.0": ("list", Verdict.PASS),
    "0.33.0": ("list", Verdict.PASS),
}


@pytest.mark.network
@pytest.mark.parametrize("release", RELEASES)
def test_releases_are_as_they_are_known_to_be(release: str) -> None:
    kept_as, found = judged(bound(release).make, f"vllm {release}")
    assert (kept_as, found.verdict) == RELEASES[release], found
    if found.verdict is Verdict.FAIL:
        assert "an empty mask: get_num_embeds() gives IndexError" in found.detail
        assert "mask 1 (1), start 0, end 0: gives (0, 1), (0, 0) is right" in found.detail


@pytest.mark.network
def test_ours_costs_what_the_release_does() -> None:
    makes = {"tensor": TensorRange, "0.19.1": bound("0.19.1").make}
    ours, theirs = step_costs(makes, geo3k(), repetitions=1)
    assert ours.torch_calls == theirs.torch_calls > 0


@pytest.mark.network
def test_the_release_that_took_the_list_is_cheaper_by_as_much() -> None:
    makes = {release: bound(release).make for release in ("0.19.1", "0.20.0")}
    before, after = step_costs(makes, geo3k(), repetitions=21)
    assert before.microseconds >= 3 * after.microseconds, (before, after)
