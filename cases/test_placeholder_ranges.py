"""vLLM #40143: placeholder ranges as tensor and as list, and whether they count right."""

from functools import cache

import pytest

from cases.by_day import by_day
from cases.released import released
from deepstack_harness.audit.ranges import (
    BoundRange,
    MakeRange,
    bind_range,
    observe_ranges,
    range_named,
)
from deepstack_harness.audit.system_files import RANGES_CLASS
from deepstack_harness.catalogue.registry import PLACEHOLDER_RANGES
from deepstack_harness.contract.facts import System, SystemSubject
from deepstack_harness.contract.oracles.neighbours import judge_ranges as judge
from deepstack_harness.contract.verdicts import Judgement, Verdict


def judged(make: MakeRange, name: str) -> tuple[str, Judgement]:
    """In what the sum is held, and the verdict of R12."""
    seen = observe_ranges(SystemSubject(System.PLACEHOLDER_RANGES, name, RANGES_CLASS), make)
    return seen.kept_as, judge(seen)


@pytest.mark.parametrize("name", PLACEHOLDER_RANGES)
def test_each_fault_is_caught_and_each_correct_revision_passes(name: str) -> None:
    _, found = judged(range_named(name), name)
    assert found.verdict is (Verdict.FAIL if PLACEHOLDER_RANGES[name].fault else Verdict.PASS), found


@cache
def bound(release: str) -> BoundRange:
    return bind_range(released(release))


RELEASES = {
    "0.16.0": ("tensor", Verdict.FAIL),
    "0.19.1": ("tensor", Verdict.FAIL),
    "0.20.0": ("list", Verdict.PASS),
    "0.33.0": ("list", Verdict.PASS),
}


@pytest.mark.network
@pytest.mark.parametrize("release", by_day(reversed(RELEASES)))  # a wrong one by day is a range of ours
def test_releases_are_as_they_are_known_to_be(release: str) -> None:
    kept_as, found = judged(bound(release).make, f"vllm {release}")
    assert (kept_as, found.verdict) == RELEASES[release], found
    if found.verdict is Verdict.FAIL:
        assert "an empty mask: get_num_embeds() gives IndexError" in found.detail
        assert "mask 1 (1), start 0, end 0: gives (0, 1), (0, 0) is right" in found.detail
