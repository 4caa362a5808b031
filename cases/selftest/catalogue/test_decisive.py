"""The decisive cases of an incident: few, cheap first, and enough to show each of its rules."""

from dataclasses import replace

import pytest

from deepstack_harness.catalogue.decisive import decisive, decisive_of_source
from deepstack_harness.catalogue.incidents import DEEPSTACK, Incident, catalogue, find
from deepstack_harness.catalogue.matrix import Where, plan_incident, plan_source
from deepstack_harness.contract.arm_spec import ArmSpec, Backend
from deepstack_harness.contract.buffer_ref import source_buffer
from deepstack_harness.contract.case import PlannedCase
from deepstack_harness.contract.trace import Trace

INCIDENTS = [incident for incident in catalogue() if incident.system == DEEPSTACK]


def chosen(incident: Incident, family: str) -> list[PlannedCase]:
    return decisive(incident, plan_incident(incident, Where(family)))


@pytest.mark.parametrize("incident", INCIDENTS, ids=lambda one: one.id)
def test_every_rule_is_broken_by_a_faulty_case_beside_a_correct_one(incident: Incident) -> None:
    for family in incident.families:
        plan = plan_incident(incident, Where(family))
        cases = decisive(incident, plan)
        assert cases == [each for each in plan if each in cases] or len(cases) == len(set(cases))
        faulty, fixed = cases[::2], cases[1::2]
        reachable = {rule for each in plan for rule in each.must_break or ()} & set(incident.rules)
        assert {rule for each in faulty for rule in each.must_break or ()} >= reachable
        assert not any(each.must_break for each in fixed)
        assert [(one.case.trace, one.case.arm) for one in faulty] == [
            (one.case.trace, one.case.arm) for one in fixed
        ]


@pytest.mark.parametrize("incident", INCIDENTS, ids=lambda one: one.id)
def test_they_are_few_and_inductor_comes_last_in_one_pair(incident: Incident) -> None:
    cases = chosen(incident, incident.families[0])
    dear = [each.case.arm.backend is Backend.INDUCTOR for each in cases]
    assert len(cases) <= 6
    assert dear == sorted(dear)
    assert sum(dear) <= 2


def test_the_fix_that_a_reference_names_stands_beside_the_fault() -> None:
    assert [(each.case.subject, each.case.arm.name) for each in chosen(find("43602"), "qwen3_vl")] == [
        ("pr40932", "eager"), ("pr43617", "eager"),
        ("pr40932", "eager/drop_all"), ("pr43617", "eager/drop_all"),
        ("pr40932", "inductor/drop_all"), ("pr43617", "inductor/drop_all"),
    ]  # fmt: skip


def test_a_trace_that_inductor_alone_plays_is_kept() -> None:
    buffer = source_buffer("vllm", "0.22.1", "vllm 0.22.1", "Qwen3VLForConditionalGeneration")
    (first, *_) = plan_source(find("43602"), Where("qwen3_vl"), buffer)[2:]
    arms = [ArmSpec.parse(name) for name in ("inductor/drop_all", "inductor/stock")]
    traces = [Trace.parse(f"cap 16: profile 16; set {n}; forward 16") for n in (16, 9)]
    plan = [replace(first, case=replace(first.case, trace=t, arm=arm)) for t in traces for arm in arms]
    assert {each.case.trace for each in decisive_of_source(plan)} == set(traces)
    assert len(decisive_of_source(plan)) < len(plan)


@pytest.mark.parametrize("incident", [one for one in INCIDENTS if one.about_sources], ids=lambda one: one.id)
def test_a_source_is_played_on_every_trace(incident: Incident) -> None:
    buffer = source_buffer("vllm", "0.22.1", "vllm 0.22.1", "Qwen3VLForConditionalGeneration")
    for family in incident.families:
        plan = plan_source(incident, Where(family), buffer)
        kept = decisive_of_source(plan)
        assert {each.case.trace for each in kept} == {each.case.trace for each in plan}
        traces = [each.case.trace for each in kept if each.case.arm.backend is Backend.INDUCTOR]
        assert len(traces) <= max(1, len(set(traces)))
