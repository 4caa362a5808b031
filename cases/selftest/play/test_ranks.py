"""Ranks that fail, differ or lose their parent: the case reports it, and the others go on or end.

Ranks that die or hang are in `cases/test_sequence_parallel.py`, which is through with them then.
"""

import os
import subprocess
import sys
from threading import Event
from typing import cast

import pytest
import torch

from cases.selftest.workers.processes import Witness
from deepstack_harness.contract.arm import ArmSpec
from deepstack_harness.contract.case import Case, PlannedCase, registered
from deepstack_harness.contract.observation import Observation, StepFacts
from deepstack_harness.contract.oracles.judge import ORACLES, judge_case
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.trace import Trace
from deepstack_harness.errors import MachineError, UsageError
from deepstack_harness.play import ranks
from deepstack_harness.play.play_case import play_among_ranks
from deepstack_harness.play.ranks import RankPool, RanksLost, _call_all, _observation_of, rank_pool
from deepstack_harness.workers.outcomes import (
    Answered,
    CallResult,
    EndKind,
    RaisedInWorker,
    WorkerEnd,
    end_of,
)
from deepstack_harness.workers.worker import Worker

# The ranks of the shared world are those of cases/test_sequence_parallel.py too.
pytestmark = pytest.mark.xdist_group("ranks")

TRACE = "cap 16: set 9; forward 10; set 16; forward 16"


def case(caller: str = "engine", arm: str = "eager/tp2", trace: str = TRACE, device: str = "cpu") -> Case:
    return Case(
        "qwen3_vl",
        registered("reference"),
        Trace.parse(trace),
        ArmSpec.parse(arm),
        device=device,
        caller=caller,
    )


def misbehaving(name: str) -> Case:
    return case(f"cases.selftest.play.misbehaving_ranks:{name}")


def test_every_rule_of_a_case_that_was_not_played_is_an_error() -> None:
    lost = Observation("float32", "cpu", 3, 128, "2.13.0", steps=(), error="rank 1 of 2 died\nit printed: x")
    judged = judge_case(PlannedCase(case(), frozenset()), lost)
    assert judged.unjudged == {oracle.rule for oracle in ORACLES}
    details = {said.rule: said.detail for said in judged.judgements}
    assert details[Rule.BOUNDARY] == "rank 1 of 2 died"
    assert details[Rule.SHARDING] == "rank 1 of 2 died\nit printed: x"
    assert not judged.as_expected


@pytest.mark.slow  # 2 s
def test_ranks_end_with_their_parent_even_while_they_wait_for_each_other(witness: Witness) -> None:
    # Both ranks hang in the step, and hold the witness open.
    script = f"""
from deepstack_harness.contract.arm import ArmSpec
from deepstack_harness.contract.case import registered
from deepstack_harness.contract.case import Case
from deepstack_harness.contract.trace import Trace
from deepstack_harness.contract.case import registered
from deepstack_harness.play.ranks import RankPool
case = Case(
    "qwen3_vl", registered("reference"), Trace.parse({TRACE!r}), ArmSpec.parse("eager/tp2"),
    caller="cases.selftest.play.misbehaving_ranks:JoinsTheWitness",
)
RankPool().play(case)
"""
    environment = {**os.environ, "WITNESS": witness.path}
    with subprocess.Popen([sys.executable, "-c", script], env=environment) as parent:
        assert {witness.line(), witness.line()} == {"rank 0", "rank 1"}
        parent.kill()
    assert witness.is_closed()


def decoders(caller: str) -> list[StepFacts]:
    found = rank_pool().play(misbehaving(caller))
    assert found.error is None
    return [facts for facts in found.steps if facts.step.startswith("forward")]


def test_a_rank_that_raises_is_reported_and_the_ranks_go_on_together() -> None:
    first, second = decoders("RefusesOnce")
    assert first.raised is not None
    assert (first.raised.type, first.raised.message) == ("ValueError", "rank 1: not this time")
    assert second.raised is None
    assert [shard.stray is not None and shard.stray < 1e-5 for shard in second.shards] == [True, True]


def test_ranks_that_bring_unequal_rows_all_raise() -> None:
    first, second = decoders("BringsFewerRows")
    assert first.raised is not None
    assert (first.raised.type, first.raised.call) == ("UnequalRows", "decoder")
    assert first.raised.message == "rank 0: the ranks bring 5, 4 rows, and must bring equally many"
    assert second.raised is None


def test_ranks_whose_buffers_differ_cannot_be_judged() -> None:
    found = rank_pool().play(misbehaving("SetsElsewhere"))
    assert found.error is not None
    assert "the buffer of rank 1 was another than that of rank 0 in step 2 'forward 10'" in found.error


@pytest.mark.slow  # 7 s
def test_processes_are_shared_by_worlds_of_any_size() -> None:
    assert ranks_of_the_last_step("eager/tp2") == [0, 1]
    two = rank_pool().pids
    assert ranks_of_the_last_step("eager/tp4") == [0, 1, 2, 3]
    four = rank_pool().pids
    assert four[:2] == two[:2]
    assert ranks_of_the_last_step("eager/tp2") == [0, 1]
    assert rank_pool().pids == four


def ranks_of_the_last_step(arm: str) -> list[int]:
    found = rank_pool().play(case(arm=arm)).steps[-1]
    assert all(shard.stray is not None and shard.stray < 1e-5 for shard in found.shards)
    return [shard.rank for shard in found.shards]


def test_what_is_wrong_with_the_case_itself_is_reported_by_all_ranks_and_they_go_on() -> None:
    rank_pool().play(case())
    pids = rank_pool().pids
    with pytest.raises(UsageError, match="caller 'micro_batches' cannot share a step among ranks"):
        rank_pool().play(case("micro_batches"))
    assert rank_pool().pids == pids
    assert rank_pool().play(case()).error is None


@pytest.mark.parametrize(
    ("kinds", "at_fault"),
    [
        (("CollectiveTimeout", "KeyError"), 1),
        (("KeyError", "CollectiveTimeout"), 0),
        (("KeyError", "UsageError"), 0),
    ],
)
def test_the_rank_at_fault_is_not_one_that_waited(kinds: tuple[str, str], at_fault: int) -> None:
    with pytest.raises(RanksLost, match="raised KeyError: no") as lost:
        _observation_of([RaisedInWorker(type=kind, module="m", message="no") for kind in kinds])
    assert lost.value.ranks == [at_fault]


def test_a_rank_that_was_stopped_for_another_is_not_at_fault() -> None:
    ends: list[CallResult] = [WorkerEnd(EndKind.STOPPED), end_of(-11, output="last words"), Answered(None)]
    with pytest.raises(RanksLost, match="^ended by SIGSEGV$") as lost:
        _observation_of(ends)
    assert (lost.value.ranks, lost.value.outputs) == ([1], ["last words"])
    with pytest.raises(RanksLost, match="ended by the process that started it") as lost:
        _observation_of([WorkerEnd(EndKind.STOPPED), WorkerEnd(EndKind.STOPPED)])
    assert lost.value.ranks == [0, 1]


class Rank:
    """A worker that ends at once in a given way, or, given none, when it is stopped."""

    def __init__(self, end: WorkerEnd | None = None) -> None:
        self.end = end
        self.closed = self.called = False
        self._stopped = Event()

    def start(self) -> WorkerEnd | None:
        return self.end

    def call(self, *_: object, timeout_s: float) -> CallResult:
        self.called = True
        if self.end is None:
            assert self._stopped.wait(5)
        return self.end or WorkerEnd(EndKind.STOPPED)

    def stop(self) -> None:
        self._stopped.set()

    def close(self) -> None:
        self.closed = True


def test_the_ranks_that_wait_for_a_dead_one_are_stopped() -> None:
    ends = _call_all([cast(Worker, rank) for rank in (Rank(), Rank(end_of(1)), Rank())], {}, 60)
    assert ends == [WorkerEnd(EndKind.STOPPED), end_of(1), WorkerEnd(EndKind.STOPPED)]


def test_ranks_that_do_not_start_are_named_with_their_output(monkeypatch: pytest.MonkeyPatch) -> None:
    made = [Rank(end_of(3, output="no gloo\n")), Rank()]
    left = iter(made)
    monkeypatch.setattr(ranks, "Worker", lambda *_, **__: next(left))
    seen = RankPool().play(case())
    assert seen.error == "rank 0 of 2: exited with 3\nrank 0 printed: no gloo"
    assert (seen.steps, seen.levels, seen.routed) == ((), 3, False)
    assert [(rank.called, rank.closed) for rank in made] == [(False, True)] * 2
    several = ranks._error_of(case(arm="eager/tp4"), RanksLost([1, 3], "hung", ["", "x"]))
    assert several == "ranks 1, 3 of 4: hung\nrank 1 printed: nothing\nrank 3 printed: x"


def test_the_groups_of_gpus_are_left_by_all_ranks_together() -> None:
    group, rank = RankPool(), Rank()
    group._workers = [cast(Worker, rank)]
    first = group._meeting_of(case())
    assert (group._meeting_of(case()), rank.closed) == (first, False)
    assert group._meeting_of(case(device="cuda")) != first
    assert rank.closed


def test_ranks_on_gpus_that_are_not_here_are_refused() -> None:
    count = torch.cuda.device_count()
    arm = f"eager/tp{count + 2}"
    with pytest.raises(MachineError, match=f"needs a GPU for each of {count + 2} ranks, torch sees {count}"):
        rank_pool().play(case(arm=arm, device="cuda"))


def test_a_bound_source_cannot_be_sent_to_ranks() -> None:
    from deepstack_harness.models.reference import ReferenceBuffer

    with pytest.raises(UsageError, match="'reference' cannot be played under arm eager/tp2"):
        play_among_ranks(case(), {registered("reference"): ReferenceBuffer})


def test_more_ranks_than_can_be_real_are_not_compiled() -> None:
    with pytest.raises(UsageError, match="arm eager/drop_all/tp8: more than 4 ranks exchange nothing"):
        play_among_ranks(case(arm="eager/drop_all/tp8"))
