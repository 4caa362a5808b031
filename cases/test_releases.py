"""Incident 43602 on released vLLM sources, read by range from the configured package index."""

import pytest

from cases.released import released
from deepstack_harness.catalogue.incidents import find
from deepstack_harness.catalogue.plans import Where, narrow, plan_source
from deepstack_harness.contract.arm import ArmSpec
from deepstack_harness.contract.rules import Rule
from deepstack_harness.engines.classes import methods_of
from deepstack_harness.pytest_plugin.fixtures import judge_in_process

pytestmark = pytest.mark.network

FAULTY = ("0.20.0", "0.20.1", "0.20.2", "0.21.0", "0.22.1")
FREE = ("0.19.1", "0.23.0", "0.27.1", "0.33.0")
DAILY = (FAULTY[0], FREE[-1])
"""The first release with the fault and the newest one without; the others are nightly."""


def each(releases: tuple[str, ...]) -> list[object]:
    slow = pytest.mark.slow
    return [release if release in DAILY else pytest.param(release, marks=slow) for release in releases]


def rules_broken(release: str) -> frozenset[Rule]:
    bound = methods_of(released(release), "qwen3_vl")
    incident = find("43602")
    plan = plan_source(incident, Where("qwen3_vl"), bound.ref)
    cases = judge_in_process(narrow(plan, None, ArmSpec.parse("eager/drop_all")), {bound.ref: bound})
    assert not [judged.unjudged for judged in cases if judged.unjudged]
    return frozenset[Rule]().union(*(judged.broken for judged in cases)) & frozenset(incident.rules)


@pytest.mark.parametrize("release", each(FAULTY))
def test_releases_that_ship_the_fault(release: str) -> None:
    assert rules_broken(release) == {Rule.OUTPUT, Rule.STRUCTURE}


@pytest.mark.parametrize("release", each(FREE))
@pytest.mark.slow  # 5 s; one that ships it by day
def test_releases_that_are_free_of_it(release: str) -> None:
    assert rules_broken(release) == frozenset()
