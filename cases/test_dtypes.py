"""Half precision: what compiled arms may differ by from eager, and what is still seen."""

import pytest

from harness.arm import ArmSpec
from harness.case import Case, Judgement
from harness.matrix import graph_budget
from harness.oracles.every import judge_all
from harness.play import Model, play
from harness.registry import REVISIONS, resolve
from harness.rules import Rule, Verdict
from harness.trace import Trace

TRACE = Trace.parse("cap 16: profile 16; set 9; forward 16; set 3; forward 4")
FAMILIES = ["qwen3_vl", "granite4_vision"]
HALF = ["bfloat16", "float16"]


def judged(family: str, subject: str, arm: str, dtype: str) -> dict[Rule, Judgement]:
    revision, _, caller = subject.partition("@")
    spec = ArmSpec.parse(arm)
    budget = graph_budget(TRACE, spec)
    case = Case(family, revision, TRACE, spec, dtype=dtype, graph_budget=budget, caller=caller or "engine")
    make = resolve("revision", REVISIONS, revision)
    return {one.rule: one for one in judge_all(case, play(case, Model.build(family, dtype), make))}  # type: ignore[arg-type]


@pytest.mark.xdist_group("eager")
@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("family", FAMILIES)
def test_backends_that_call_eagers_kernels_equal_it_exactly(family: str, dtype: str) -> None:
    said = judged(family, "reference", "eager/drop_all", dtype)
    assert {one.verdict for one in said.values()} <= {Verdict.PASS, Verdict.SKIP}
    assert (said[Rule.R0].verdict, said[Rule.R0].value, said[Rule.R0].limit) == (Verdict.PASS, 0, 0)


@pytest.mark.xdist_group("inductor")
@pytest.mark.parametrize("arm", ["inductor/drop_all", "inductor/drop_all/emulate_casts"])
def test_inductor_rounds_elsewhere_by_no_more_than_eager_itself(arm: str) -> None:
    right = judged("qwen3_vl", "reference", arm, "bfloat16")[Rule.R0]
    assert right.verdict is Verdict.PASS
    assert right.limit is not None
    assert right.limit < 0.5
    lost = judged("qwen3_vl", "pr40932", arm, "bfloat16")[Rule.R0]
    assert (lost.verdict, (lost.value or 0) > 5 * right.limit) == (Verdict.FAIL, True)


@pytest.mark.xdist_group("eager")
@pytest.mark.parametrize("dtype", HALF)
def test_families_with_experts_are_compared_in_float32_only(dtype: str) -> None:
    said = judged("qwen3_omni_moe_thinker", "reference", "eager/drop_all", dtype)[Rule.R0]
    assert said.verdict is Verdict.SKIP
    assert "float32" in said.detail


@pytest.mark.xdist_group("eager")
def test_another_order_of_additions_shows_in_half_precision_alone() -> None:
    verdicts = [
        judged("qwen3_vl", "reference@order_of_additions", "eager/drop_all", dtype)[Rule.R0].verdict
        for dtype in ("float32", *HALF)
    ]
    assert verdicts == [Verdict.PASS, Verdict.FAIL, Verdict.FAIL]
