"""R9 on observations written by hand, what ranks saw put together, rows of large worlds on the ledger."""

from dataclasses import replace
from itertools import chain

import pytest
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from deepstack_harness.catalogue.workload import pad_to_multiple
from deepstack_harness.contract.arm import ArmSpec
from deepstack_harness.contract.case import Case, registered
from deepstack_harness.contract.ledger import Ledger
from deepstack_harness.contract.observation import (
    Answer,
    Distances,
    Observation,
    Raised,
    RowRange,
    ShardFacts,
    StepFacts,
)
from deepstack_harness.contract.oracles.ranks import judge_sharding, rows_of_rank
from deepstack_harness.contract.oracles.trace_audit import ObservedCase, origins_of
from deepstack_harness.contract.trace import Op, Step, Trace
from deepstack_harness.contract.verdicts import Judgement, Verdict
from deepstack_harness.errors import NotMeasured, UsageError
from deepstack_harness.models.engine import SequenceParallel, caller_of, shared_copy
from deepstack_harness.play.ranks import merged

TP2 = ArmSpec.parse("eager/tp2")
TRACE = Trace.parse("cap 16: set 5 request=a; forward 6")
NEAR = Distances(eager=1e-6, no_deepstack=3, zero_deepstack=3, effect=3, rounding=1e-6)
WHOLE = (RowRange(1, 0, 0, 5), RowRange(0, 0, 0, 1))
FIRST = (RowRange(1, 0, 0, 3),)
SECOND = (RowRange(1, 0, 3, 2), RowRange(0, 0, 0, 1))


def shard(rank: int, *rows: RowRange, stray: float | None = 1e-6) -> ShardFacts:
    return ShardFacts(rank, 2, (rows,), stray)


WHOLE_ROWS = (*(RowRange(1, 0, row, 1) for row in range(5)), RowRange(0, 0, 0, 1))
RIGHT = (shard(0, *FIRST), shard(1, *SECOND))


def observed(shards: tuple[ShardFacts, ...] = RIGHT, **changes: object) -> Observation:
    answer = Answer("tensors", (WHOLE,), (8,), ("float32",), ("cpu",), (64,))
    last = StepFacts("forward 6", 16, answer=answer, distances=NEAR, shards=shards)
    steps = (StepFacts("set 5", 16), replace(last, **changes))  # type: ignore[arg-type]
    return Observation("float32", "cpu", 1, 8, "2.13.0", steps)


def judge(observation: Observation, arm: ArmSpec = TP2) -> Judgement:
    return judge_sharding(ObservedCase(Case("qwen3_vl", registered("reference"), TRACE, arm), observation))


def test_each_rank_with_its_own_rows_passes() -> None:
    judgement = judge(observed())
    assert (judgement.verdict, judgement.value, judgement.limit) == (Verdict.PASS, 0, 0)
    assert judgement.detail == "rows of 2 of 2 ranks, outputs 1e-06 apart"


@pytest.mark.parametrize(
    ("first", "second", "wrong", "words"),
    [
        (FIRST, FIRST, 3, "rank 1 of 2 was given 3 wrong rows over 1 level, first row 3 of level 0: "),
        (FIRST, FIRST, 3, "it holds row 0 (rank 0's), level 0 of payload 1 (request a) and should hold"),
        (WHOLE, SECOND, 3, "it holds row 3 (rank 1's), level 0 of payload 1 (request a) and is one too many"),
        (FIRST, SECOND[:1], 1, "first row 5 of level 0: it is missing and should hold zeros"),
        (FIRST, (RowRange(1, 0, 3, 2), RowRange(None, 0, 0, 1)), 1, "it holds a value that was never set"),
        (
            (RowRange(1, 0, 2, 1), RowRange(1, 0, 1, 1), RowRange(1, 0, 0, 1)), SECOND, 2,
            "first row 0 of level 0",
        ),
    ],
)  # fmt: skip
def test_rows_that_are_not_the_ranks_own_are_counted(
    first: tuple[RowRange, ...], second: tuple[RowRange, ...], wrong: int, words: str
) -> None:
    judgement = judge(observed((shard(0, *first), shard(1, *second))))
    assert (judgement.verdict, judgement.value, judgement.unit) == (Verdict.FAIL, wrong, "rows")
    assert words in judgement.detail


STRIPED = (((0, 1), (2, 3), (4, 5)), ((1, 2), (3, 4), (5, 6)))
EVEN = tuple(RowRange(1, 0, row, 1) for row in (0, 2, 4))
ODD = (*(RowRange(1, 0, row, 1) for row in (1, 3)), RowRange(0, 0, 0, 1))


def striped(
    *rows: tuple[RowRange, ...], owns: tuple[tuple[tuple[int, int], ...], ...] = STRIPED
) -> tuple[ShardFacts, ...]:
    """Return what each rank was given under a partition of its own."""
    return tuple(replace(shard(rank, *mine), owns=owns[rank]) for rank, mine in enumerate(rows))


def test_an_engine_may_state_another_partition() -> None:
    assert judge(observed(striped(EVEN, ODD))).verdict is Verdict.PASS
    assert judge(observed((shard(0, *EVEN), shard(1, *ODD)))).verdict is Verdict.FAIL


@pytest.mark.parametrize(
    ("shards", "wrong", "words"),
    [
        (striped(EVEN, EVEN), 3, "first row 1 of level 0: it holds row 0 (rank 0's), level 0 of payload 1"),
        (striped(FIRST, ODD), 2, "first row 2 of level 0: it holds row 1 (rank 1's), level 0 of payload 1"),
        (striped((*EVEN, ODD[0]), ODD), 1, "first row 5 of level 0: it holds row 1 (rank 1's)"),
        (striped(EVEN, ODD[:2]), 1, "first row 5 of level 0: it is missing and should hold zeros"),
    ],
)
def test_rows_are_compared_by_the_stated_partition(
    shards: tuple[ShardFacts, ...], wrong: int, words: str
) -> None:
    judgement = judge(observed(shards))
    assert (judgement.verdict, judgement.value, judgement.unit) == (Verdict.FAIL, wrong, "rows")
    assert words in judgement.detail


@pytest.mark.parametrize(
    ("owns", "wrong", "words"),
    [
        ((((0, 3),), ((2, 6),)), 1, "step 2 'forward 6' of 6 rows: 2 ranks own row 2, not one"),
        ((((0, 2),), ((3, 6),)), 1, "0 ranks own row 2, not one"),
        ((((0, 3),), ((3, 8),)), 2, "'forward 6' of 6 rows: a rank owns row 6"),
    ],
)
def test_a_stated_partition_has_to_be_one(
    owns: tuple[tuple[tuple[int, int], ...], ...], wrong: int, words: str
) -> None:
    rows = [[WHOLE_ROWS[row] for start, end in mine for row in range(start, min(end, 6))] for mine in owns]
    judgement = judge(observed(striped(*map(tuple, rows), owns=owns)))
    assert (judgement.verdict, judgement.value, judgement.unit) == (Verdict.FAIL, wrong, "rows")
    assert words in judgement.detail


def test_rows_may_be_those_of_a_rank_that_was_not_measured() -> None:
    assert judge(observed(striped(EVEN))).verdict is Verdict.PASS


def test_an_output_that_strays_is_counted_where_no_row_is_wrong() -> None:
    judgement = judge(observed((RIGHT[0], shard(1, *SECOND, stray=0.5))))
    assert (judgement.verdict, judgement.value, judgement.unit) == (Verdict.FAIL, 1, "ranks")
    assert judgement.detail == "step 2 'forward 6': rank 1 of 2 gathered an output 0.5 from the unsharded one"


def test_a_compiled_output_is_for_r0_to_judge() -> None:
    strayed = observed((RIGHT[0], shard(1, *SECOND, stray=0.5)))
    assert judge(strayed, ArmSpec.parse("aot_eager/drop_all/tp2")).verdict is Verdict.PASS


@pytest.mark.parametrize(
    ("dtype", "routed", "verdict"),
    [("float32", True, Verdict.FAIL), ("bfloat16", False, Verdict.FAIL), ("bfloat16", True, Verdict.PASS)],
)
def test_an_expert_chosen_otherwise_in_half_precision_is_no_straying(
    dtype: str, routed: bool, verdict: Verdict
) -> None:
    strayed = replace(observed((RIGHT[0], shard(1, *SECOND, stray=0.5))), dtype=dtype, routed=routed)
    assert (
        judge_sharding(
            ObservedCase(Case("qwen3_vl", registered("reference"), TRACE, TP2, dtype=dtype), strayed)
        ).verdict
        is verdict
    )


def test_a_decoder_that_raised_fails_where_no_other_rule_does() -> None:
    raised = Raised("RuntimeError", "rank 1: sizes", "decoder", "layers.py:3")
    judgement = judge(observed(raised=raised))
    assert (judgement.verdict, judgement.value, judgement.unit) == (Verdict.FAIL, 1, "calls")
    assert judgement.detail == "step 2 'forward 6' raised RuntimeError: rank 1: sizes"
    assert judge(observed(raised=raised), ArmSpec.parse("aot_eager/drop_all/tp2")).verdict is Verdict.PASS


def test_a_row_as_the_buffer_returned_it_is_no_fault_of_sharding() -> None:
    stale = (RowRange(2, 0, 0, 1), *FIRST[1:])
    answer = Answer(
        "tensors",
        ((*stale, RowRange(1, 0, 1, 4), RowRange(0, 0, 0, 1)),),
        (8,),
        ("float32",),
        ("cpu",),
        (64,),
    )
    judgement = judge(observed((shard(0, *stale, RowRange(1, 0, 1, 2)), RIGHT[1]), answer=answer))
    assert judgement.verdict is Verdict.PASS


def test_ranks_with_only_zeros_show_nothing() -> None:
    trace = Trace.parse("cap 16: profile 6; forward 6")
    zeros = (shard(0, RowRange(0, 0, 0, 3)), shard(1, RowRange(0, 0, 0, 3)))
    steps = tuple(StepFacts(str(step), 16, shards=zeros) for step in trace)
    judgement = judge_sharding(
        ObservedCase(Case("qwen3_vl", registered("reference"), trace, TP2), replace(observed(), steps=steps))
    )
    assert (judgement.verdict, judgement.detail) == (Verdict.SKIP, "no ranks shared a step with a payload")


def test_without_ranks_or_without_facts_nothing_is_judged() -> None:
    assert judge(observed(), ArmSpec()).verdict is Verdict.SKIP
    assert judge(replace(observed(), error="rank 1 died")).verdict is Verdict.ERROR


RANKS = st.sampled_from([2, 3, 8, 16, 96, 512])


@given(ranks=RANKS, tokens=st.integers(0, 600), padded=st.booleans())
def test_the_rows_of_all_ranks_are_those_of_the_ledger(ranks: int, tokens: int, padded: bool) -> None:
    ledger = Ledger(2048, 2, 8)
    ledger.commit(Step(Op.SET, tokens), accepted=True, capacity=2048)
    share = pad_to_multiple(tokens + ranks * padded, ranks)
    runs = ledger.rows(1, share)
    parts = [rows_of_rank(runs, ShardFacts(rank, ranks, ()), share) for rank in range(ranks)]
    assert [len(part) for part in parts] == [share // ranks] * ranks
    assert list(chain.from_iterable(parts)) == origins_of(runs)
    held = [origin for part in parts for origin in part if origin[0]]
    assert held == [(1, 1, row) for row in range(tokens)]


def of_rank(rank: int, **changes: object) -> Observation:
    return observed((RIGHT[rank],), **changes)


def test_shards_of_all_ranks_and_the_worst_figures_are_in_the_result() -> None:
    off = of_rank(1, distances=replace(NEAR, eager=0.5), attended=7, graphs=2)
    whole = merged([of_rank(0, attended=6), off], [0, 1])
    last = whole.steps[-1]
    assert last.shards == RIGHT
    assert (last.distances, last.attended, last.graphs) == (replace(NEAR, eager=0.5), 7, 2)
    assert whole.error is None


def raised(kind: str, message: str) -> Raised:
    return Raised(kind, message, "decoder", "layers.py:3")


@pytest.mark.parametrize(
    ("errors", "reported"),
    [
        ((None, None), None),
        ((raised("PeerFailed", "rank 1 failed"), raised("RuntimeError", "sizes")), "rank 1: sizes"),
        ((raised("RuntimeError", "one"), raised("RuntimeError", "other")), "rank 0: one"),
        ((None, raised("ValueError", "clear")), "rank 1: clear"),
        ((raised("PeerFailed", "rank 1 failed"), None), "rank 0: rank 1 failed"),
    ],
)
def test_the_rank_that_raised_is_reported_and_not_the_one_that_heard_of_it(
    errors: tuple[Raised | None, Raised | None], reported: str | None
) -> None:
    whole = merged([of_rank(rank, raised=error) for rank, error in enumerate(errors)], [0, 1])
    found = whole.steps[-1].raised
    assert (found.message if found else None) == reported


@pytest.mark.parametrize(
    "changes", [{"capacity": 32}, {"generation": 1}, {"unavailable": "no"}, {"answer": Answer("none")}]
)
def test_ranks_whose_buffers_differ_cannot_be_judged(changes: dict[str, object]) -> None:
    whole = merged([of_rank(0), of_rank(1, **changes)], [0, 4])
    assert whole.error is not None
    assert whole.error.startswith(
        "the buffer of rank 4 was another than that of rank 0 in step 2 'forward 6'"
    )


def test_what_one_rank_could_not_measure_is_in_the_result() -> None:
    assert merged([of_rank(0), replace(of_rank(1), error="no graph")], [0, 1]).error == "no graph"


def case(caller: str, arm: str) -> Case:
    return Case("qwen3_vl", registered("reference"), TRACE, ArmSpec.parse(arm), caller=caller)


CASES = "deepstack_harness.contract.case"


CASES = "deepstack_harness.contract.case"


@pytest.mark.parametrize(
    ("caller", "arm", "words"),
    [
        ("micro_batches", "eager/tp2", "caller 'micro_batches' cannot share a step among ranks"),
        ("clumsy", "eager", "unknown caller 'clumsy'; nearest are "),
        ("deepstack_harness.nowhere:It", "eager", "caller 'deepstack_harness.nowhere:It' cannot be imported"),
        (f"{CASES}:Nobody", "eager", f"caller '{CASES}:Nobody' cannot be imported: module"),
        (f"{CASES}:Case", "eager", f"caller '{CASES}:Case' is not a class built on"),
        ("deepstack_harness:play:play", "eager", "caller 'deepstack_harness:play:play' cannot be imported"),
    ],
)  # fmt: skip
def test_a_caller_that_does_not_fit_is_quoted(caller: str, arm: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        caller_of(case(caller, arm))
    assert str(caught.value).startswith(words)


def test_a_caller_of_ones_own_is_found() -> None:
    found = caller_of(case("deepstack_harness.models.engine:SequenceParallel", "eager"))
    assert (type(found), found.rank, found.ranks) == (SequenceParallel, 0, 1)


def test_ranks_outside_their_world_are_not_measured() -> None:
    assert not dist.is_initialized()
    with pytest.raises(NotMeasured, match="2 ranks should share each step, but the process group has 1"):
        caller_of(case("engine", "eager/tp2"))


def test_a_copy_of_a_decoder_owns_no_weights() -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    copied = shared_copy(module)
    copied[0] = nn.Identity()
    assert isinstance(module[0], nn.Linear)
    assert copied[1] is not module[1]
    assert copied[1].weight is module[1].weight
    assert copied[1].running_mean is module[1].running_mean


def test_a_step_that_was_not_done_changes_no_row() -> None:
    zeros = Answer("tensors", ((RowRange(0, 0, 0, 6),),), (8,), ("float32",), ("cpu",), (64,))
    seen = observed(answer=zeros)
    first, last = seen.steps
    trace = Trace.parse("cap 16: set 5 request=a; clear 5; forward 6")
    case = Case("qwen3_vl", registered("reference"), trace, TP2)
    for unavailable, verdict in (("it has no clear", Verdict.PASS), (None, Verdict.FAIL)):
        cleared = StepFacts("clear 5", 16, unavailable=unavailable)
        found = judge_sharding(ObservedCase(case, replace(seen, steps=(first, cleared, last))))
        assert found.verdict is verdict
