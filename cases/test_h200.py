"""The arm `h200`: decoders whose Triton source for an H200 is interpreted, by output and by row.

Nightly, all families, dtypes and shapes, and the incidents that kernels show.  Every day the tests of
`compile.interpreted` play one graph, and `test_kernels.py` compares kernels of an H200 with their baseline.
"""

import re
from collections.abc import Iterator
from dataclasses import replace

import pytest

from cases.baselines import BaselineEntry
from cases.played import observed
from cases.test_kernels import hold_against_baseline
from deepstack_harness.catalogue.plans import graph_budget
from deepstack_harness.compile.kernel_rows import ExecutedStep, executed
from deepstack_harness.compile.kernels import Subject, measure
from deepstack_harness.compile.torch_compat.targets import why_not
from deepstack_harness.contract.arm import ArmSpec
from deepstack_harness.contract.case import Case, PlannedCase, registered
from deepstack_harness.contract.oracles.compiler import judge_step, payload_rows
from deepstack_harness.contract.oracles.judge import JudgedCase, judge_case
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.trace import Trace
from deepstack_harness.contract.verdicts import Verdict

WHY_NOT = why_not()
pytestmark = [pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT), pytest.mark.xdist_group("h200")]
TRACE = "cap 16: profile 16; set 9; forward 16; set 7; forward 9"


def judged(
    family: str,
    revision: str = "pr43617",
    *,
    arm: str = "h200/drop_all",
    trace: str = TRACE,
    dtype: str = "float32",
) -> JudgedCase:
    """Play a case in the worker that interprets, and judge it by every rule."""
    spec, parsed = ArmSpec.parse(arm), Trace.parse(trace)
    case = Case(family, registered(revision), parsed, spec, dtype, graph_budget=graph_budget(parsed, spec))
    return judge_case(PlannedCase(case, None), observed(case))


def verdicts(found: JudgedCase, *rules: Rule) -> list[Verdict]:
    return [judgement.verdict for rule in rules for judgement in found.judgements if judgement.rule is rule]


MEASURED = (Rule.OUTPUT, Rule.WORK, Rule.GRAPHS, Rule.MEMORY)


@pytest.mark.slow  # 16 s
def test_a_right_buffer_passes_every_rule_and_no_kernel_reads_more_than_the_step() -> None:
    found = judged("qwen3_vl:opaque")
    assert not found.broken, found.judgements
    assert verdicts(found, *MEASURED) == [Verdict.PASS] * len(MEASURED)
    facts = [step.accesses for step in found.observation.steps if step.accesses is not None]
    assert [work.launches > 5 and 0 < work.share < 1 for work in facts] == [True] * 3


def others() -> Iterator[object]:
    for family in ("qwen3_vl:opaque", "qwen3_omni_moe_thinker:opaque", "granite4_vision:opaque"):
        revision = "granite_sliced" if family.startswith("granite") else "pr43617"
        for dtype in ("float32", "bfloat16", "float16"):
            yield pytest.param(family, revision, "h200/drop_all", dtype, id=f"{family}-{dtype}")
    for family in ("qwen3_vl", "qwen3_vl:written_out"):
        yield pytest.param(family, "pr43617", "h200/drop_all", "float32", id=family)


@pytest.mark.slow
@pytest.mark.parametrize(("family", "revision", "arm", "dtype"), list(others()))
def test_families_and_dtypes(family: str, revision: str, arm: str, dtype: str) -> None:
    found = judged(family, revision, arm=arm, dtype=dtype)
    assert not found.broken | found.unjudged, found.judgements
    assert verdicts(found, Rule.MEMORY) == [Verdict.PASS]


@pytest.mark.slow
@pytest.mark.parametrize("revision", ["pr40145", "pr40932"])
def test_43602_shows_in_the_output_and_in_the_accesses(revision: str) -> None:
    """A graph that was traced without a payload goes on without one, and no kernel reads a row of it."""
    found = judged("qwen3_vl", revision, trace="cap 16: profile 16; set 16; forward 16")
    (step,) = [step for step in found.observation.steps if step.distances and step.distances.effect > 0]
    assert step.distances is not None
    assert step.accesses is not None
    assert found.broken == {Rule.OUTPUT, Rule.STRUCTURE}
    assert step.distances.no_deepstack is not None
    assert step.distances.eager > 1000 * step.distances.no_deepstack
    assert payload_rows(step.accesses) == (0, None)


TOKENS, CAPACITY = 17, 64
GRANITE = Subject(
    "granite4_vision", "granite_sliced", tokens=TOKENS, capacity=CAPACITY, profile_tokens=CAPACITY,
    target="h200", layers=1, execute=True,
)  # fmt: skip
SUBJECTS = {
    "sliced": GRANITE,
    "rows": replace(GRANITE, revision="granite_rows"),
    "short": replace(
        GRANITE, family="qwen3_vl", revision="one_row_short_at_capacity", layers=3, dtype="float32",
        tokens=TOKENS, capacity=TOKENS, profile_tokens=9,
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def steps() -> dict[str, ExecutedStep]:
    found = measure(list(SUBJECTS.values()))
    return {name: executed(measured) for name, measured in zip(SUBJECTS, found, strict=True)}


def broken(step: ExecutedStep) -> set[Rule]:
    judgements = judge_step(step.accesses, step.measured.subject.tokens)
    return {judgement.rule for judgement in judgements if judgement.verdict is not Verdict.PASS}


@pytest.mark.slow
def test_whole_buffers_are_touched_row_by_row_and_slices_are_not(steps: dict[str, ExecutedStep]) -> None:
    rows, sliced = steps["rows"], steps["sliced"]
    assert [max(launch.rows for launch in step.launches) for step in (rows, sliced)] == [CAPACITY, TOKENS]
    assert (broken(rows), broken(sliced)) == ({Rule.WORK, Rule.MEMORY}, set())


@pytest.mark.slow
def test_the_static_count_is_what_is_touched(steps: dict[str, ExecutedStep]) -> None:
    for step in (steps["rows"], steps["sliced"]):
        assert [launch.bytes for launch in step.launches] == [
            launch.counted.bytes for launch in step.launches
        ]


@pytest.mark.slow
def test_only_gathers_are_counted_otherwise(steps: dict[str, ExecutedStep]) -> None:
    """Qwen3-VL picks one of three axes of its positions for each rotary lane; statically that is one axis."""
    apart = [launch for launch in steps["short"].launches if launch.bytes != launch.counted.bytes]
    assert {launch.bytes - launch.counted.bytes for launch in apart} == {2 * 8 * TOKENS}
    assert {"positions" in {access.tensor for access in launch.accesses} for launch in apart} == {True}


@pytest.mark.slow
def test_a_row_too_few_is_named_with_kernel_argument_and_row(steps: dict[str, ExecutedStep]) -> None:
    judgements = judge_step(steps["short"].accesses, TOKENS)
    (broken,) = [judgement for judgement in judgements if judgement.verdict is not Verdict.PASS]
    assert broken.rule is Rule.MEMORY
    assert re.search(r"kernel triton_\w+ touched bytes .* of payload\[\d\] \(in_", broken.detail)
    assert "row 16 of 16, in the storage of which it is a view" in broken.detail


@pytest.mark.slow
def test_what_is_touched_is_that_of_the_baseline(
    steps: dict[str, ExecutedStep], request: pytest.FixtureRequest
) -> None:
    entries = [BaselineEntry.from_measurement(step.measured) for step in steps.values()]
    hold_against_baseline(request, "h200-executed", steps["sliced"].measured, entries)
