"""R11: how many graphs a correct buffer costs, by family, arm and sizes; and what costs more."""

import pytest

from cases.selftest.playing import buffer_named
from harness.arm import ArmSpec
from harness.case import Case, Observation
from harness.matrix import graph_budget
from harness.oracles.every import judge_all
from harness.play import Model, play
from harness.rules import Rule, Verdict
from harness.trace import Trace

pytestmark = pytest.mark.xdist_group("eager")

MANY = "cap 16: profile 16; set 9; forward 9; forward 2; forward 12"
SMALL = "cap 16: profile 16; set 9; forward 9; forward 1; forward 0; forward 2"
EMPTY_LAST = "cap 16: forward 5; set 9; forward 9; forward 2; forward 1; forward 0"
NINE_SIZES = "cap 16: " + "; ".join(f"set {n}; forward {n}" for n in range(3, 12))


def played(subject: str, arm: str, trace: str, family: str = "qwen3_vl") -> tuple[Observation, Verdict, int]:
    revision, _, caller = subject.partition("@")
    spec, parsed = ArmSpec.parse(arm), Trace.parse(trace)
    budget = graph_budget(parsed, spec)
    case = Case(family, revision, parsed, spec, graph_budget=budget, caller=caller or "engine")
    seen = play(case, Model.build(family), buffer_named(revision))
    verdict = next(said.verdict for said in judge_all(case, seen) if said.rule is Rule.R11)
    return seen, verdict, budget


@pytest.mark.parametrize("family", ["qwen3_vl", "qwen3_omni_moe_thinker", "granite4_vision"])
@pytest.mark.parametrize(
    ("arm", "trace", "graphs"),
    [
        ("eager/drop_all", SMALL, 1),
        ("eager/stock", MANY, 1),
        ("eager/stock", SMALL, 3),
        ("eager/stock/static", MANY, 4),
    ],
)
def test_every_family_is_one_graph_for_all_sizes(family: str, arm: str, trace: str, graphs: int) -> None:
    seen, verdict, budget = played("reference", arm, trace, family)
    assert seen.graphs is not None
    assert (seen.graphs.graphs, budget, verdict) == (graphs, graphs, Verdict.PASS)
    assert (seen.graphs.breaks, seen.graphs.limit_hit) == (0, False)


def test_unbacked_sizes_are_one_graph_with_0_and_1_tokens() -> None:
    seen, verdict, _ = played("reference", "eager/drop_all/mark_unbacked", EMPTY_LAST, "qwen3_vl:written_out")
    assert seen.graphs is not None
    assert (seen.graphs.graphs, verdict) == (1, Verdict.PASS)


def test_text_and_images_in_turn_compile_where_the_answer_changes_its_structure() -> None:
    traffic = "cap 16: set 9; forward 16; forward 4; set 3; forward 8; forward 2"
    faulty, verdict, budget = played("pr40932", "eager/stock", traffic)
    assert faulty.graphs is not None
    assert (faulty.graphs.graphs, budget, verdict) == (2, 1, Verdict.FAIL)
    assert played("reference", "eager/stock", traffic)[1] is Verdict.PASS


@pytest.mark.filterwarnings("ignore:.*recompile_limit")
def test_the_recompile_limit_is_a_finding_and_no_silent_fall_back(caplog: pytest.LogCaptureFixture) -> None:
    seen, verdict, budget = played("reference", "eager/stock/static", NINE_SIZES)
    assert seen.graphs is not None
    assert (budget, seen.graphs.graphs, seen.graphs.limit_hit, verdict) == (9, 8, True, Verdict.FAIL)
    last = seen.steps[-1].raised
    assert last is not None
    assert last.call == "decoder"


def test_a_count_that_is_read_while_tracing_costs_a_graph_for_each_value() -> None:
    trace = "cap 16: " + "; ".join(f"set {n}; forward 16" for n in (16, 9, 3, 5, 7))
    seen, verdict, budget = played("reference@state_in_trace", "eager/stock", trace)
    assert seen.graphs is not None
    assert (seen.graphs.graphs, budget, verdict) == (5, 1, Verdict.FAIL)
    assert "tokens_set" in seen.graphs.reasons[0]
