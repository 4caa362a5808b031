"""Buffers under captured graphs: the orders of steps that production failed in, revision by revision."""

from collections.abc import Iterator

import pytest

from cases.played import observed
from deepstack_harness.catalogue.matrix import graph_budget
from deepstack_harness.contract.arm_spec import ArmSpec
from deepstack_harness.contract.buffer_ref import registered
from deepstack_harness.contract.case import Case, PlannedCase
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.trace import Trace
from deepstack_harness.oracles.judged_case import JudgedCase, judge_case

TEXT_AFTER_AN_IMAGE = "cap 16: capture 16; set 16; replay 16; replay 16"
GROWTH = "cap 16: capture 16; set 9; replay 16; set 20; replay 16"
NEW_TENSORS = "cap 16: capture 16; set 16; replay 16"

R0, R1, R5, R6 = Rule.R0, Rule.R1, Rule.R5, Rule.R6
Broken = dict[str, set[Rule]]
NONE_AT_CAPTURE: Broken = {"pr40145": {R0, R1}, "pr40932": {R0, R1}}
STALE: Broken = {"pr43617": {R0, R5}, "pr49397": {R0, R5}}
MOVED: Broken = {"original": {R0, R6}, "pr43617": {R0, R6}, "pr49397": {R0, R6}}
RIGHT: Broken = {"original": set(), "reference": set()}
ONLY_RIGHT: Broken = {"reference": set()}

WHOLE = ("eager/full", "eager/breakable")
PIECES = "eager/piecewise"


def cases() -> Iterator[object]:
    """A trace, an arm, and which rules each buffer breaks there, all of them."""
    # Get and clear in the graph: the counter is 0 at capture, so clear records no zeroing.
    for arm in WHOLE:
        yield from expected(TEXT_AFTER_AN_IMAGE, arm, NONE_AT_CAPTURE | STALE | RIGHT)
    for arm in ("eager/drop_all/full", "inductor/drop_all/full"):
        yield from expected(TEXT_AFTER_AN_IMAGE, arm, {"pr43617": {R0, R5}})
    yield from expected(TEXT_AFTER_AN_IMAGE, "eager/drop_all/full", {"pr40932": {R0, R1}} | ONLY_RIGHT)
    # Get and clear are Python, and so is the counter.
    right_here: Broken = {buffer: set() for buffer in STALE}
    yield from expected(TEXT_AFTER_AN_IMAGE, PIECES, NONE_AT_CAPTURE | right_here | RIGHT)
    for arm in (*WHOLE, PIECES):
        freed: Broken = {"frees_on_resize": {R0, R6}}
        yield from expected(GROWTH, arm, {"pr40932": {R0, R1}} | MOVED | freed | ONLY_RIGHT)
        yield from expected(NEW_TENSORS, arm, {"rebinds_on_set": {R0, R6}} | ONLY_RIGHT)


def expected(trace: str, arm: str, broken: Broken) -> Iterator[object]:
    parsed, spec = Trace.parse(trace), ArmSpec.parse(arm)
    for buffer, rules in broken.items():
        case = Case("qwen3_vl", registered(buffer), parsed, spec, graph_budget=graph_budget(parsed, spec))
        name = f"{buffer}-{arm}-{trace}".replace(" ", "_")
        group = pytest.mark.xdist_group(str(spec.backend))
        yield pytest.param(PlannedCase(case, frozenset(rules)), id=name, marks=group)


@pytest.mark.parametrize("planned", list(cases()))
def test_breaks_what_it_is_known_to_break_under_graphs(planned: PlannedCase) -> None:
    judged = judge_case(planned, observed(planned.case))
    assert judged.as_expected, [
        said for said in judged.judgements if said.rule in judged.broken | judged.unjudged
    ]


def played(trace: str, buffer: str, arm: str = "eager/full") -> JudgedCase:
    parsed, spec = Trace.parse(trace), ArmSpec.parse(arm)
    case = Case("qwen3_vl", registered(buffer), parsed, spec, graph_budget=graph_budget(parsed, spec))
    return judge_case(PlannedCase(case, None), observed(case))


def test_a_text_only_replay_reads_all_rows_of_the_image_before_it() -> None:
    judged = played(TEXT_AFTER_AN_IMAGE, "pr43617")
    said = next(said for said in judged.judgements if said.rule is R5)
    assert (said.value, said.unit) == (3 * 16, "rows")
    assert "payload 1 (request r1, cleared at step 3)" in said.detail


def test_a_replay_on_old_tensors_equals_a_model_without_deepstack() -> None:
    wrong = played(NEW_TENSORS, "rebinds_on_set").observation.steps[-1].distances
    right = played(NEW_TENSORS, "reference").observation.steps[-1].distances
    assert wrong is not None
    assert right is not None
    assert (wrong.zero_deepstack, right.eager) == (0, 0)
    assert min(wrong.eager, right.zero_deepstack) > 1


@pytest.mark.xdist_group("eager")
@pytest.mark.parametrize("buffer", ["reference", "pr43617"])
def test_growth_costs_a_step_without_a_graph_and_no_compile(buffer: str) -> None:
    steps = played(GROWTH, buffer, "eager/drop_all/full").observation.steps
    assert steps[-1].graphs == 1
    detached = [facts.graph_use.detached for facts in steps if facts.graph_use]
    assert detached == [False] * 4 + [buffer == "pr43617"]
