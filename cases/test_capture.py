"""Buffers under captured graphs: what a replay reads, and how far its output is from the right one.

Which rules each revision breaks there is in incidents.toml and contract.toml.
"""

from dataclasses import replace

import pytest

from cases.by_day import by_day
from cases.played import observed
from deepstack_harness.catalogue.incidents import find
from deepstack_harness.catalogue.plans import Where, graph_budget, plan_incident
from deepstack_harness.contract.arm import ArmSpec, Capture
from deepstack_harness.contract.case import Case, PlannedCase, registered
from deepstack_harness.contract.oracles.judge import JudgedCase, judge_case
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.trace import Trace

TEXT_AFTER_AN_IMAGE = "cap 16: capture 16; set 16; replay 16; replay 16"
GROWTH = "cap 16: capture 16; set 9; replay 16; set 20; replay 16"
NEW_TENSORS = "cap 16: capture 16; set 16; replay 16"


def played(trace: str, buffer: str, arm: str = "eager/full") -> JudgedCase:
    parsed, spec = Trace.parse(trace), ArmSpec.parse(arm)
    case = Case("qwen3_vl", registered(buffer), parsed, spec, graph_budget=graph_budget(parsed, spec))
    return judge_case(PlannedCase(case, None), observed(case, few_layers=spec.compiled))


def test_a_text_only_replay_reads_all_rows_of_the_image_before_it() -> None:
    judged = played(TEXT_AFTER_AN_IMAGE, "pr43617")
    cleared = next(judgement for judgement in judged.judgements if judgement.rule is Rule.CLEAR)
    assert (cleared.value, cleared.unit) == (3 * 16, "rows")
    assert "payload 1 (request r1, cleared at step 3)" in cleared.detail


def test_a_replay_on_old_tensors_equals_a_model_without_deepstack() -> None:
    wrong = played(NEW_TENSORS, "rebinds_on_set").observation.steps[-1].distances
    right = played(NEW_TENSORS, "reference").observation.steps[-1].distances
    assert wrong is not None
    assert right is not None
    assert (wrong.zero_deepstack, right.eager) == (0, 0)
    assert min(wrong.eager, right.zero_deepstack) > 1


@pytest.mark.xdist_group("eager")
@pytest.mark.parametrize("buffer", by_day(["reference", "pr43617"]))
def test_growth_costs_a_step_without_a_graph_and_no_compile(buffer: str) -> None:
    steps = played(GROWTH, buffer, "eager/drop_all/full").observation.steps
    assert steps[-1].graphs == 1
    detached = [facts.graph_use.detached for facts in steps if facts.graph_use]
    assert detached == [False] * 4 + [buffer == "pr43617"]


def of_a_gpu() -> list[PlannedCase]:
    """Return the cases of 43602 that are played only on a GPU."""
    on_gpu, on_cpu = (
        plan_incident(find("43602"), Where("qwen3_vl", device=device)) for device in ("cuda", "cpu")
    )
    elsewhere = {replace(planned.case, device="cuda") for planned in on_cpu}
    return [planned for planned in on_gpu if planned.case not in elsewhere]


def test_43602_is_played_under_each_mode_of_cuda_graphs() -> None:
    planned = of_a_gpu()
    assert {planned_case.case.arm.capture for planned_case in planned} == set(Capture) - {Capture.NONE}
    assert {planned_case.case.device for planned_case in planned} == {"cuda"}


@pytest.mark.xdist_group("eager")
@pytest.mark.parametrize(
    "mode",
    [
        Capture.FULL,  # each takes 4 s, and they differ in the order of the same calls
        *(
            pytest.param(mode, marks=pytest.mark.slow)
            for mode in Capture
            if mode not in {Capture.NONE, Capture.FULL, Capture.REDUCE_OVERHEAD}
        ),
    ],
)
def test_43602_on_a_gpu_is_rehearsed_with_recorded_graphs(mode: Capture) -> None:
    """Only Dynamo's graphs: Inductor's are compiled at night, on the GPU."""
    cases = [
        planned_case for planned_case in of_a_gpu() if planned_case.case.arm.name == f"eager/drop_all/{mode}"
    ]
    assert {case.case.subject for case in cases} == {"pr40145", "pr40932", "pr43617", "reference"}
    for planned in cases:
        case = replace(planned.case, device="cpu")
        judged = judge_case(PlannedCase(case, None), observed(case, few_layers=True))
        assert frozenset(judged.broken) == planned.must_break, case.subject
