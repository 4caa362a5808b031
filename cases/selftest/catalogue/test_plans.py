"""What is planned (budgets, order, a user's own trace or arm), and the traces of `check`."""

from dataclasses import replace

import pytest

from cases.selftest.models.checking import broken_in
from deepstack_harness.catalogue.buffers import ALL_MUTANTS, buffer_named
from deepstack_harness.catalogue.incidents import Incident, catalogue, find
from deepstack_harness.catalogue.plans import (
    Where,
    check_traces,
    graph_budget,
    narrow,
    plan_incident,
    plan_source,
    plan_workload,
)
from deepstack_harness.contract.arm import ArmSpec, Backend
from deepstack_harness.contract.case import Compare, Regime, source_buffer
from deepstack_harness.contract.trace import Op, Trace

WHERE = Where("qwen3_vl")


@pytest.mark.parametrize(
    ("trace", "arm", "graphs"),
    [
        ("cap 16: profile 16; set 9; forward 16", "eager/stock", 1),
        ("cap 16: profile 16; forward 1; forward 0; forward 1", "eager/stock", 3),
        ("cap 16: profile 16; forward 1; forward 0; forward 1", "eager/drop_all", 1),
        ("cap 16: profile 16; forward 1", "eager/shape_env_only", 1),
        ("cap 16: set 1; get 1; forward 4", "eager/keep_tensor", 1),
        ("cap 16: get 1", "inductor/stock", 1),
    ],
)
def test_graph_budget(trace: str, arm: str, graphs: int) -> None:
    assert graph_budget(Trace.parse(trace), ArmSpec.parse(arm)) == graphs


def test_cheap_backends_come_first() -> None:
    backends = [planned.case.arm.backend for planned in plan_incident(find("43602"), WHERE)]
    order = [Backend.NONE, Backend.EAGER, Backend.AOT_EAGER, Backend.INDUCTOR]
    assert list(dict.fromkeys(backends)) == order
    assert backends == sorted(backends, key=order.index)


def test_every_revision_is_planned_with_what_it_must_break() -> None:
    incident = find("43602")
    plan = [planned for planned in plan_incident(incident, WHERE) if not planned.is_control]
    assert {planned.case.buffer.name for planned in plan} == set(incident.revisions)
    assert {planned.case.buffer.name for planned in plan if planned.must_break} == set(incident.faulty)


def test_an_arm_of_the_catalogue_has_its_expectations_and_the_controls() -> None:
    plan = narrow(plan_incident(find("43602"), WHERE), None, ArmSpec.parse("eager/stock"))
    assert {planned.case.arm.name for planned in plan} == {"no-deepstack", "zero-deepstack", "eager/stock"}
    assert all(planned.must_break is not None for planned in plan)


def test_a_trace_of_ones_own_is_planned_once_per_revision_and_arm() -> None:
    trace = Trace.parse("cap 4: profile 4; set 2; forward 1")
    arm = ArmSpec.parse("inductor/keep_tensor")
    plan = narrow(plan_incident(find("43602"), WHERE), trace, arm)
    assert [planned.case.buffer.name for planned in plan] == list(find("43602").revisions)
    assert {(planned.case.trace, planned.case.arm, planned.must_break) for planned in plan} == {
        (trace, arm, None)
    }


def test_an_interpreted_arm_plays_what_is_played_with_inductor() -> None:
    plan = narrow(plan_incident(find("43602"), WHERE), None, ArmSpec.parse("h200/drop_all"))
    assert [planned.case.buffer.name for planned in plan] == list(find("43602").revisions)
    assert {str(planned.case.trace) for planned in plan} == {"cap 16: profile 16; set 16; forward 16"}
    assert {planned.must_break for planned in plan} == {None}


def test_of_a_source_nothing_is_expected() -> None:
    plan = plan_source(find("43602"), WHERE, source_buffer("vllm", "1.2.3", "vllm 1.2.3", "SomeModel"))
    of_source = [planned for planned in plan if not planned.is_control]
    buffers = {planned.case.buffer for planned in of_source}
    assert [(buffer.source, buffer.package, buffer.version, buffer.model_class) for buffer in buffers] == [
        ("vllm 1.2.3", "vllm", "1.2.3", "SomeModel")
    ]
    assert {planned.must_break for planned in of_source} == {None}


@pytest.mark.parametrize(
    "incident", [incident for incident in catalogue() if incident.families], ids=lambda incident: incident.id
)
def test_no_note_of_a_source_speaks_of_one_of_our_revisions(incident: Incident) -> None:
    where = replace(WHERE, family=incident.families[0])
    plan = plan_source(incident, where, source_buffer("vllm", "0.23.0", "vllm 0.23.0", "Model"))
    names = {subject.partition("@")[0] for subject in incident.revisions} - {"reference", "original"}
    assert not [planned.note for planned in plan if any(name in planned.note for name in names)]


def test_other_notes_stay_with_a_source() -> None:
    plan = plan_source(find("43602"), WHERE, source_buffer("vllm", "0.23.0", "vllm 0.23.0", "Model"))
    notes = {planned.note for planned in plan}
    assert "with its guards kept, torch recompiles and is right" in notes
    assert not any("pr40145" in note for note in notes)


def test_a_workload_of_a_source_runs_with_and_without_guards() -> None:
    source = source_buffer("vllm", "0.22.1", "vllm 0.22.1", "Qwen3VL")
    plan = plan_workload(find("43602"), WHERE, Trace.parse("cap 16: forward 1"), source)
    assert [(planned.case.buffer, planned.case.arm) for planned in plan] == [
        (source, ArmSpec.parse("eager/drop_all")),
        (source, ArmSpec.parse("eager/stock")),
    ]
    assert {(planned.case.compare, planned.incident, planned.must_break) for planned in plan} == {
        (Compare.EAGER, "43602", None)
    }


def test_the_sample_is_small() -> None:
    """Its size decides its time: 104 traces took 2.6 s of processor time, half of it the first capture."""
    sample = [Trace.parse(text) for text in check_traces()]
    assert 90 <= len(sample) <= 110
    assert sum(len(trace.steps) for trace in sample) <= 2_000
    # Each returned row is compared: 8192 rows are fine where there is one level of four columns.
    elements = [
        step.tokens * (trace.levels or 3) * (trace.hidden or 128)
        for trace in sample
        for step in trace
        if step.op in (Op.SET, Op.GET)
    ]
    assert max(elements) <= 300_000
    assert sum(elements) <= 9_000_000


@pytest.mark.slow  # 1 s each
@pytest.mark.parametrize("name", ALL_MUTANTS)
def test_the_sample_has_the_power_of_all_traces(name: str) -> None:
    rule, make = ALL_MUTANTS[name].rule, buffer_named(name)
    assert any(rule in broken_in(make, regime, until=rule) for regime in Regime)
