"""Compiled sessions: guards that a policy retains, graphs that are counted, shapes, graph breaks."""

from dataclasses import replace

import pytest
import torch

from cases.by_day import by_day
from cases.played import Played, play_judged
from cases.selftest.play.playing import case_of, observe
from cases.shallow import shallow
from deepstack_harness.compile.compiled import CompiledSession
from deepstack_harness.compile.graph_counts import graph_facts
from deepstack_harness.contract.arm import ArmSpec, GuardPolicy
from deepstack_harness.contract.protocols import Inputs
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.verdicts import Verdict
from deepstack_harness.errors import NotMeasured
from deepstack_harness.play.model import Model

DROP_ALL = ArmSpec.parse("eager/drop_all")


@pytest.fixture(scope="module")
def qwen() -> Model:
    """A decoder of two layers: what is counted here does not depend on depth."""
    return shallow("qwen3_vl")


def session(model: Model, arm: ArmSpec = DROP_ALL) -> CompiledSession:
    return CompiledSession(arm, model.decoder, model.profile(16))


def inputs(model: Model, tokens: int) -> Inputs:
    hidden = torch.randn(tokens, model.family.hidden, generator=torch.Generator().manual_seed(0))
    return Inputs(hidden, model.family.positions(tokens, model.device), None)


def test_nothing_compiled_is_not_measured(qwen: Model) -> None:
    opened = session(qwen)
    with pytest.raises(NotMeasured, match="no graph was built"):
        graph_facts(opened, GuardPolicy.DROP_ALL)


def test_a_guard_policy_that_was_not_applied_is_noticed(qwen: Model) -> None:
    stock = session(qwen, ArmSpec.parse("eager/stock"))
    stock.forward(inputs(qwen, 4))
    with pytest.raises(NotMeasured, match="drop_all was not applied"):
        graph_facts(stock, GuardPolicy.DROP_ALL)
    assert stock.code.dropped == ()


def test_a_dropped_guard_that_fails_is_a_fact_of_the_graph(qwen: Model) -> None:
    opened = session(qwen)
    opened.forward(inputs(qwen, 4))
    facts = graph_facts(opened, GuardPolicy.DROP_ALL)
    assert facts.guards > facts.kept == 0
    assert facts.failed == ()
    assert sum(dropped.number for dropped in facts.code.dropped) == facts.guards
    assert "TENSOR_MATCH" in {dropped.kind for dropped in facts.code.dropped}
    assert facts.code.kernels is None
    assert facts.code.seconds
    payload = tuple(torch.ones(4, qwen.family.hidden) for _ in range(qwen.family.levels))
    opened.forward(replace(inputs(qwen, 4), payload=payload))
    (guard,) = graph_facts(opened, GuardPolicy.DROP_ALL).failed
    assert (guard.name, guard.rule, guard.then) == ("payload", "L['payload'] is None", "None")
    assert (guard.now, guard.first_call, guard.calls) == (f"tuple of {qwen.family.levels}", 2, 1)
    opened.forget_failures()
    assert opened.failed_guards() == ()


def test_dynamo_does_not_fall_back_to_eager_in_silence(qwen: Model) -> None:
    structures = "; ".join(f"profile {n}" for n in (16, 1, 0))
    with torch._dynamo.config.patch(recompile_limit=1):  # noqa: TID251
        observation = observe(
            qwen, f"cap 16: {structures}; set 16; forward 16", "pr40932", ArmSpec.parse("eager/stock")
        )
    assert observation.graphs is not None
    assert observation.graphs.limit_hit


@pytest.mark.slow  # by day in cases/test_graph_budgets.py
def test_one_graph_serves_all_counts_without_guards(qwen: Model) -> None:
    counts = (16, 0, 1, 2, 9, 17, 33)
    trace = "cap 64: profile 16; " + "; ".join(f"set {n}; forward {n}" for n in counts)
    observation = observe(qwen, trace, "reference", DROP_ALL)
    assert observation.graphs is not None
    assert observation.graphs.graphs == 1
    measured = [facts.distances for facts in observation.steps if facts.distances]
    assert len(measured) == len(counts)  # 0 tokens have no distance, the profile run has
    assert max(found.eager for found in measured) < 1e-5


def test_every_arm_of_the_backend_eager_runs(qwen: Model) -> None:
    case = case_of("cap 16: profile 16; set 9; forward 16", "reference", ArmSpec.parse("eager/keep_tensor"))
    observation = observe(qwen, str(case.trace), "reference", case.arm)
    assert observation.graphs is not None
    assert 0 < observation.graphs.kept < observation.graphs.guards


UNBACKED = "eager/drop_all/mark_unbacked"


WRITTEN_OUT = "qwen3_vl:written_out"


ON_EAGER = pytest.mark.xdist_group("eager")


def played(family: str, arm: str, trace: str, caller: str = "engine") -> Played:
    return play_judged(shallow(family), f"reference@{caller}", arm, trace, family=family)


def sizes(*counts: int, first: str = "profile 16") -> str:
    return f"cap 16: {first}; " + "; ".join(f"set {n}; forward {n}" for n in counts)


@pytest.mark.slow  # by day in cases/test_graph_budgets.py
@ON_EAGER
@pytest.mark.parametrize("guards", by_day(["stock", "drop_all"]))
def test_unbacked_sizes_are_one_graph_down_to_1(guards: str) -> None:
    found = played(WRITTEN_OUT, f"eager/{guards}/mark_unbacked", sizes(5, 9, 2, 1))
    assert (found.graphs, found.broken) == (1, set())
    assert found.judgements[Rule.OUTPUT].verdict is Verdict.PASS


@ON_EAGER
@pytest.mark.slow  # 4 s
def test_empty_tensors_are_another_graph_where_guards_look_at_strides() -> None:
    found = played(WRITTEN_OUT, "eager/stock/mark_unbacked", sizes(9, 0, 1))
    assert (found.graphs, found.case.graph_budget, found.broken) == (2, 2, set())


@ON_EAGER
@pytest.mark.slow  # 3 s
def test_unbacked_sizes_that_differ_raise_where_others_broadcast() -> None:
    # Traced with one row of payload for one token, then one row for nine tokens.
    trace = sizes(9, first="profile 1")
    silent = played(WRITTEN_OUT, "eager/drop_all", trace, caller="asks_by_batch_size")
    assert not silent.observation.steps[-1].raised
    assert Rule.OUTPUT in silent.broken
    raised = played(WRITTEN_OUT, UNBACKED, trace, caller="asks_by_batch_size").judgements[Rule.OUTPUT]
    assert raised.verdict is Verdict.FAIL
    assert "raised RuntimeError: Runtime assertion failed for expression Eq" in raised.detail


@ON_EAGER
def test_a_decoder_that_compares_sizes_cannot_have_them_unbacked() -> None:
    found = played("granite4_vision", UNBACKED, sizes(9))
    assert found.broken == {Rule.OUTPUT}
    assert "step 1 'profile 16' raised UserError: " in found.judgements[Rule.OUTPUT].detail
    assert (
        found.judgements[Rule.GRAPHS].detail == "nothing was compiled: step 1 'profile 16' raised UserError"
    )
    assert "unbacked sizes cannot be compared with each other" in found.diagnosis


@pytest.mark.slow  # by day its sentence in contract/oracles/test_outputs.py
@pytest.mark.xdist_group("aot_eager")
def test_a_static_graph_without_guards_is_for_a_single_size() -> None:
    found = played("qwen3_vl", "aot_eager/drop_all/static", sizes(16, 9))
    assert found.observation.steps[2].raised is None
    assert (found.graphs, found.broken) == (1, {Rule.OUTPUT})
    assert "step 5 'forward 9' raised RuntimeError" in found.judgements[Rule.OUTPUT].detail
    assert "the graph is for one size alone, and no guard was left to notice 9 tokens" in found.diagnosis


@ON_EAGER
@pytest.mark.slow  # 5 s
def test_more_sizes_than_torch_compiles_are_no_silent_eager() -> None:
    counts = range(3, 12)  # one more than Dynamo's recompile limit
    found = played("qwen3_vl", "eager/stock/static", sizes(*counts, first="profile 3"))
    assert (found.graphs, found.case.graph_budget) == (8, 9)
    assert found.broken == {Rule.GRAPHS}
    assert found.observation.graphs is not None
    assert found.observation.graphs.limit_hit
    assert "the recompile limit was reached" in found.judgements[Rule.GRAPHS].detail
    assert "torch compiles no more than 8 graphs" in found.diagnosis


@pytest.mark.xdist_group("eager")
@pytest.mark.parametrize(
    ("arm", "caller", "broken"),
    by_day(
        [
            ("eager/stock/static/breaks", "boolean_index", {Rule.GRAPHS}),
            ("eager/stock/static/breaks", "masked_scatter", set()),
            # With fullgraph torch records the size that it does not know.
            ("eager/stock/static", "boolean_index", set()),
        ]
    ),
)
def test_what_breaks_a_graph(arm: str, caller: str, broken: set[Rule]) -> None:
    trace = "cap 16: set 9; forward 16"
    found = play_judged(shallow("qwen3_vl"), f"reference@{caller}", arm, trace, family="qwen3_vl")
    assert found.broken == broken
    assert found.diagnosis.startswith("torch broke the graph") == bool(broken)
