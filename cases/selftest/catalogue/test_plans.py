"""What is planned: budgets, order, and what a user's own trace or arm makes of an incident."""

import pytest

from deepstack_harness.catalogue.incidents import find
from deepstack_harness.catalogue.plans import (
    Where,
    graph_budget,
    narrow,
    plan_incident,
    plan_source,
    plan_workload,
)
from deepstack_harness.contract.arm import ArmSpec, Backend
from deepstack_harness.contract.case import Compare, source_buffer
from deepstack_harness.contract.trace import Trace

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


def test_an_arm_of_the_catalogue_keeps_its_expectations_and_the_controls() -> None:
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
    assert [(each.source, each.package, each.version, each.model_class) for each in buffers] == [
        ("vllm 1.2.3", "vllm", "1.2.3", "SomeModel")
    ]
    assert {planned.must_break for planned in of_source} == {None}


def test_a_workload_of_a_source_runs_with_guards_dropped_and_kept() -> None:
    source = source_buffer("vllm", "0.22.1", "vllm 0.22.1", "Qwen3VL")
    plan = plan_workload(find("43602"), WHERE, Trace.parse("cap 16: forward 1"), source)
    assert [(one.case.buffer, one.case.arm) for one in plan] == [
        (source, ArmSpec.parse("eager/drop_all")),
        (source, ArmSpec.parse("eager/stock")),
    ]
    assert {(one.case.compare, one.incident, one.must_break) for one in plan} == {
        (Compare.EAGER, "43602", None)
    }
