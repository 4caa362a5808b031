"""Shape policies: what each one compiles for, and what R0 and R11 say where it does not fit."""

import pytest

from cases.played import Played, play_judged
from cases.shallow import shallow
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.verdicts import Verdict

UNBACKED = "eager/drop_all/mark_unbacked"
WRITTEN_OUT = "qwen3_vl:written_out"
ON_EAGER = pytest.mark.xdist_group("eager")


def played(family: str, arm: str, trace: str, caller: str = "engine") -> Played:
    return play_judged(shallow(family), f"reference@{caller}", arm, trace, family=family)


def sizes(*counts: int, first: str = "profile 16") -> str:
    return f"cap 16: {first}; " + "; ".join(f"set {n}; forward {n}" for n in counts)


@ON_EAGER
@pytest.mark.parametrize("guards", ["stock", "drop_all"])
def test_unbacked_sizes_are_one_graph_down_to_1(guards: str) -> None:
    found = played(WRITTEN_OUT, f"eager/{guards}/mark_unbacked", sizes(5, 9, 2, 1))
    assert (found.graphs, found.broken) == (1, set())
    assert found.said[Rule.R0].verdict is Verdict.PASS


@ON_EAGER
def test_empty_tensors_are_another_graph_where_guards_look_at_strides() -> None:
    found = played(WRITTEN_OUT, "eager/stock/mark_unbacked", sizes(9, 0, 1))
    assert (found.graphs, found.case.graph_budget, found.broken) == (2, 2, set())


@ON_EAGER
def test_unbacked_sizes_that_differ_raise_where_others_broadcast() -> None:
    # Traced with one row of payload for one token, then one row for nine tokens.
    trace = sizes(9, first="profile 1")
    silent = played(WRITTEN_OUT, "eager/drop_all", trace, caller="asks_by_batch_size")
    assert not silent.observation.steps[-1].raised
    assert Rule.R0 in silent.broken
    raised = played(WRITTEN_OUT, UNBACKED, trace, caller="asks_by_batch_size").said[Rule.R0]
    assert raised.verdict is Verdict.FAIL
    assert "raised RuntimeError: Runtime assertion failed for expression Eq" in raised.detail


@ON_EAGER
def test_a_decoder_that_compares_sizes_cannot_have_them_unbacked() -> None:
    found = played("granite4_vision", UNBACKED, sizes(9))
    assert found.broken == {Rule.R0}
    assert "step 1 'profile 16' raised UserError: " in found.said[Rule.R0].detail
    assert found.said[Rule.R11].detail == "nothing was compiled: step 1 'profile 16' raised UserError"
    assert "unbacked sizes cannot be compared with each other" in found.diagnosis


@pytest.mark.xdist_group("aot_eager")
def test_a_static_graph_without_guards_is_for_one_size_alone() -> None:
    found = played("qwen3_vl", "aot_eager/drop_all/static", sizes(16, 9))
    assert found.observation.steps[2].raised is None
    assert (found.graphs, found.broken) == (1, {Rule.R0})
    assert "step 5 'forward 9' raised RuntimeError" in found.said[Rule.R0].detail
    assert "the graph is for one size alone, and no guard was left to notice 9 tokens" in found.diagnosis


@ON_EAGER
@pytest.mark.slow  # 5 s
def test_more_sizes_than_torch_compiles_are_no_silent_eager() -> None:
    counts = range(3, 12)  # one more than Dynamo's recompile limit
    found = played("qwen3_vl", "eager/stock/static", sizes(*counts, first="profile 3"))
    assert (found.graphs, found.case.graph_budget) == (8, 9)
    assert found.broken == {Rule.R11}
    assert found.observation.graphs is not None
    assert found.observation.graphs.limit_hit
    assert "the recompile limit was reached" in found.said[Rule.R11].detail
    assert "torch compiles no more than 8 graphs" in found.diagnosis
