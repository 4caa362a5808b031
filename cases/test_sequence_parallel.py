"""Ranks that share steps, and pipeline stages: what is lost or mixed up, in which world."""

import re

import pytest

from cases.by_day import by_day
from cases.played import observed
from cases.selftest.workers.processes import has_ended
from deepstack_harness.catalogue.plans import graph_budget
from deepstack_harness.catalogue.workload import pad_to_multiple
from deepstack_harness.contract.arm import ArmSpec
from deepstack_harness.contract.case import Case, PlannedCase, parse_subject, registered
from deepstack_harness.contract.observation import ShardFacts
from deepstack_harness.contract.oracles.judge import JudgedCase, judge_case
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.trace import Trace
from deepstack_harness.contract.verdicts import Verdict
from deepstack_harness.play.ranks import rank_pool

# One worker starts the ranks, and all cases here are theirs.
pytestmark = pytest.mark.xdist_group("ranks")

MISBEHAVING = "cases.selftest.play.misbehaving_ranks"
FAMILIES = ["qwen3_vl", "qwen3_omni_moe_thinker", "granite4_vision"]
FAULTY = ["payload_not_sharded", "payload_sharded_unpadded", "wrong_ranks_rows"]
# Tokens set; the step is padded as the crash reports have it (9 to 10, 309 to 310, ..).
TOKENS = [9, 7, 14]


def trace(ranks: int, tokens: list[int] = TOKENS) -> str:
    """A profile run, then image after image with text between, each step padded to the ranks."""
    padded = [pad_to_multiple(token, ranks) for token in tokens]
    images = [
        f"set {count}; forward {share}; forward {ranks}" for count, share in zip(tokens, padded, strict=True)
    ]
    return f"cap {max(padded)}: profile {max(padded)}; {'; '.join(images)}"


def play(subject: str, arm: str, steps: str, family: str = "qwen3_vl") -> JudgedCase:
    parsed, spec = Trace.parse(steps), ArmSpec.parse(arm)
    revision, caller = parse_subject(subject)
    budget = graph_budget(parsed, spec)
    case = Case(family, registered(revision), parsed, spec, graph_budget=budget, caller=caller)
    return judge_case(PlannedCase(case, None), observed(case))


def shards(judged: JudgedCase, step: int = 2) -> tuple[ShardFacts, ...]:
    return judged.observation.steps[step].shards


def verdict(judged: JudgedCase, rule: Rule) -> Verdict:
    return next(said.verdict for said in judged.judgements if said.rule is rule)


def told(judged: JudgedCase, rule: Rule) -> str:
    return next(said.detail for said in judged.judgements if said.rule is rule)


@pytest.mark.parametrize("ranks", by_day([3, 2, 4]))
def test_ranks_together_equal_the_unsharded_run(ranks: int) -> None:
    judged = play("reference", f"eager/tp{ranks}", trace(ranks) + "; forward 0")
    assert (judged.broken, judged.unjudged) == (frozenset(), frozenset())
    assert verdict(judged, Rule.SHARDING) is Verdict.PASS
    assert [shard.rank for shard in shards(judged)] == list(range(ranks))
    strays = [shard.stray for shard in shards(judged)]
    assert all(stray is not None and stray < 1e-5 for stray in strays)


@pytest.mark.parametrize("family", by_day(FAMILIES[1:]))
def test_so_do_the_ranks_of_other_families(family: str) -> None:
    judged = play("reference", "eager/tp2", trace(2), family)
    assert (judged.broken, judged.unjudged) == (frozenset(), frozenset())
    assert verdict(judged, Rule.SHARDING) is Verdict.PASS


@pytest.mark.parametrize("caller", FAULTY)
@pytest.mark.parametrize(
    ("family", "ranks"), by_day([("qwen3_vl", 4), ("qwen3_vl", 3), *((family, 2) for family in FAMILIES)])
)
def test_a_payload_that_is_sharded_wrongly_breaks_only_r9(caller: str, family: str, ranks: int) -> None:
    judged = play(f"reference@{caller}", f"eager/tp{ranks}", trace(ranks), family)
    assert judged.broken == {Rule.SHARDING}
    assert not judged.unjudged


@pytest.mark.parametrize("caller", ["engine", *FAULTY])
def test_one_rank_is_the_unsharded_engine(caller: str) -> None:
    judged = play(f"reference@{caller}", "eager", "cap 16: profile 16; set 9; forward 10")
    assert (judged.broken, judged.unjudged) == (frozenset(), frozenset())
    assert verdict(judged, Rule.SHARDING) is Verdict.SKIP
    assert judged.observation.steps[-1].distances is not None


def test_a_payload_that_is_whole_does_not_fit() -> None:
    judged = play("reference@payload_not_sharded", "eager/tp2", "cap 16: set 9 request=a; forward 10")
    assert told(judged, Rule.SHARDING) == (
        "step 2 'forward 10': rank 0 of 2 was given 15 wrong rows over 3 levels, first row 5 of level 0: "
        "it holds row 5 (rank 1's), level 0 of payload 1 (request a) and is one too many; "
        "step 2 'forward 10' raised RuntimeError: rank 0: The size of tensor a (5) must match the size of "
        "tensor b (10) at non-singleton dimension 0 (and 1 more)"
    )


def test_a_payload_split_by_its_own_size_does_not_fit_on_the_last_rank() -> None:
    judged = play("reference@payload_sharded_unpadded", "eager/tp2", "cap 16: set 9; forward 10")
    assert "rank 1 of 2 was given 3 wrong rows" in told(judged, Rule.SHARDING)
    raised = judged.observation.steps[-1].raised
    assert raised is not None
    assert raised.message.startswith("rank 1: The size of tensor a (5) must match the size of tensor b (4)")


def test_rows_of_the_wrong_rank_fit_and_are_silent() -> None:
    judged = play("reference@wrong_ranks_rows", "eager/tp2", "cap 16: set 9 request=a; forward 10")
    assert not any(facts.raised for facts in judged.observation.steps)
    assert "first row 0 of level 0: it holds row 5 (rank 1's), level 0 of payload 1 (request a)" in told(
        judged, Rule.SHARDING
    )
    assert "rank 0 of 2 gathered an output" in told(judged, Rule.SHARDING)


def test_a_buffer_that_is_wrong_on_every_rank_breaks_its_own_rule() -> None:
    judged = play("pr43617", "eager/tp2", "cap 16: set 10 request=a; set 4 request=b; forward 10")
    assert judged.broken == {Rule.FRESHNESS}
    assert verdict(judged, Rule.SHARDING) is Verdict.PASS


def test_a_step_that_cannot_be_sharded_states_how_to_pad_it() -> None:
    judged = play("reference", "eager/tp2", "cap 16: set 9; forward 9")
    assert judged.broken == frozenset()
    assert verdict(judged, Rule.SHARDING) is Verdict.SKIP
    assert told(judged, Rule.SHARDING) == "9 tokens cannot be shared by 2 ranks: pad the step to 10"


@pytest.mark.parametrize(
    ("caller", "backend"),
    [
        pytest.param("engine", "aot_eager", marks=pytest.mark.slow),
        pytest.param("wrong_ranks_rows", "aot_eager", marks=pytest.mark.slow),
        ("payload_sharded_unpadded", "eager"),
    ],
)
@pytest.mark.slow  # 8 s; a payload lost by compiled ranks by day
def test_compiled_ranks(caller: str, backend: str) -> None:
    # The output is judged by R0 here; every rank builds one graph for all sizes.
    judged = play(f"reference@{caller}", f"{backend}/drop_all/tp2", trace(2))
    assert judged.broken == (frozenset() if caller == "engine" else {Rule.OUTPUT, Rule.SHARDING})
    assert not judged.unjudged
    assert verdict(judged, Rule.GRAPHS) is Verdict.PASS


@pytest.mark.slow  # 5 s; one process loses it in test_none_while_profiling.py by day
def test_a_payload_that_is_none_while_profiling_is_lost_by_ranks_too() -> None:
    judged = play("pr40932", "eager/drop_all/tp2", "cap 16: profile 16; set 16; forward 16")
    assert judged.broken == {Rule.OUTPUT, Rule.STRUCTURE}
    assert verdict(judged, Rule.SHARDING) is Verdict.PASS


def test_ranks_capture_and_reload_nothing() -> None:
    judged = play("reference", "eager/full/tp2", "cap 16: capture 16; set 9; replay 16; reload")
    captured, _, replayed, reloaded = (facts.unavailable for facts in judged.observation.steps)
    assert captured == "graphs of steps that ranks share are not captured"
    assert replayed == "arm eager/full/tp2 has no graph for 16 tokens; captured are none"
    assert reloaded == "a step that ranks share is not reloaded: the fresh process is not one of the ranks"
    assert judged.broken == frozenset()


@pytest.mark.parametrize("ranks", by_day([64, 8, 512]))
def test_ranks_of_a_large_world_get_their_rows(ranks: int) -> None:
    judged = play("reference", f"eager/tp{ranks}", trace(ranks, [ranks - 3]))
    assert (judged.broken, judged.unjudged) == (frozenset(), frozenset())
    assert told(judged, Rule.SHARDING) == f"rows of 3 of {ranks} ranks, outputs not compared"
    assert [shard.rank for shard in shards(judged)] == [0, ranks // 2, ranks - 1]
    # One row each: the payload's for the first two, the padding's for the last.
    assert [shard.rows[0][0].payload for shard in shards(judged)] == [1, 1, 0]


@pytest.mark.parametrize("caller", by_day(FAULTY))
def test_so_do_not_those_of_a_faulty_one(caller: str) -> None:
    judged = play(f"reference@{caller}", "eager/tp64", trace(64, [120]))
    assert judged.broken == {Rule.SHARDING}


STAGES = "cap 16: profile 16; set 9; forward 10; set 16; forward 16"


@pytest.mark.parametrize(
    "family", ["qwen3_vl", *(pytest.param(family, marks=pytest.mark.slow) for family in FAMILIES[1:])]
)
@pytest.mark.slow  # 3 s
def test_levels_of_the_second_stage_are_lost_without_an_error(family: str) -> None:
    lost = play("reference@pipeline_loses_levels", "eager/drop_all", STAGES, family)
    assert lost.broken == {Rule.OUTPUT}
    assert not any(facts.raised for facts in lost.observation.steps)


@pytest.mark.parametrize("family", FAMILIES)
def test_levels_that_are_sent_to_their_stage_are_not_lost(family: str) -> None:
    last = play("reference@pipeline_stages", "eager", STAGES, family).observation.steps[-1].distances
    assert last is not None
    assert last.eager == 0
    assert last.effect > 1


@pytest.mark.slow  # 2 s
def test_neither_are_they_where_stages_are_compiled() -> None:
    judged = play("reference@pipeline_stages", "eager/drop_all", STAGES)
    assert judged.broken == frozenset()
    assert verdict(judged, Rule.OUTPUT) is Verdict.PASS


def test_only_the_later_levels_are_lost() -> None:
    judged = play("reference@pipeline_loses_levels", "eager", STAGES)
    last = judged.observation.steps[-1].distances
    assert last is not None
    assert last.no_deepstack is not None
    assert min(last.eager, last.no_deepstack) > 1


def test_a_split_that_would_lose_levels_is_reported() -> None:
    judged = play("reference@pipeline_refused", "eager/drop_all", STAGES)
    assert judged.broken == frozenset()
    refused = judged.observation.steps[0].unavailable
    assert refused is not None
    assert refused.startswith("the first stage has 2 layers and the payload 3 levels")


@pytest.mark.slow  # 20 s
def test_a_rank_that_dies_or_hangs_ends_the_case_and_every_process(monkeypatch: pytest.MonkeyPatch) -> None:
    # Last of all: these ranks have played the cases above, and are not needed any more.
    # What they printed in an earlier case is no part of this one's output.
    play(f"reference@{MISBEHAVING}:Misbehaves", "eager/tp2", STAGES)
    before = rank_pool().pids
    died = play(f"reference@{MISBEHAVING}:Dies", "eager/tp2", STAGES)
    assert died.observation.error == "rank 1 of 2: ended by SIGSEGV\nrank 1 printed: printed before"
    assert {said.verdict for said in died.judgements} == {Verdict.ERROR}
    assert (told(died, Rule.SHARDING), rank_pool().pids) == (died.observation.error, [])
    assert all(pid and has_ended(pid) for pid in before)

    flooded = play(f"reference@{MISBEHAVING}:Floods", "eager/tp2", STAGES)
    assert told(flooded, Rule.SHARDING).startswith("rank 1 of 2: printed ")
    assert rank_pool().pids == []

    # The next case finds new ranks, which play it.
    assert verdict(play("reference", "eager/tp2", STAGES), Rule.SHARDING) is Verdict.PASS
    after = rank_pool().pids
    assert len(after) == 2

    monkeypatch.setattr(rank_pool(), "timeout_s", 6)
    hung = play(f"reference@{MISBEHAVING}:Hangs", "eager/tp2", STAGES)
    assert {said.verdict for said in hung.judgements} == {Verdict.ERROR}
    why = told(hung, Rule.SHARDING)
    # Rank 0 reported that it waited in vain; the one at fault is the one that reported nothing.
    assert why.startswith("rank 1 of 2: no answer within 6 s\nrank 1 printed: printed before\n")
    assert "in misbehave" in why, "the output does not show where it hangs"
    grandchild = re.search(r"^grandchild (\d+)$", why, re.MULTILINE)
    assert grandchild is not None
    assert rank_pool().pids == []
    assert all(pid and has_ended(pid) for pid in [*after, int(grandchild[1])])
