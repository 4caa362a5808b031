"""A pool of this machine: an error of ours ends its run, a stopped one plays nothing, an end is told."""

from types import SimpleNamespace
from typing import cast

import pytest

from deepstack_harness.contract.arm_spec import EAGER
from deepstack_harness.contract.buffer_ref import registered
from deepstack_harness.contract.case import Case, PlannedCase
from deepstack_harness.contract.trace import Trace
from deepstack_harness.errors import MachineError
from deepstack_harness.play.case_worker import CaseWorker
from deepstack_harness.results.case_result import lost_result
from deepstack_harness.results.records import CaseEnding
from deepstack_harness.runs import local_pool, play_group
from deepstack_harness.runs.groups import Group
from deepstack_harness.runs.local_pool import LocalPool
from deepstack_harness.runs.play_group import RUN_LIMITS
from deepstack_harness.workers.outcomes import CallResult, Exited, RaisedInWorker, RanOutOfMemory
from deepstack_harness.workers.worker import Worker


def planned() -> PlannedCase:
    return PlannedCase(Case("qwen3_vl", registered("reference"), Trace.parse("cap 4: get 4"), EAGER), None)


def test_an_error_of_ours_in_a_thread_ends_the_run_with_that_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise MachineError("no process can be started")

    monkeypatch.setattr(local_pool, "play_group", broken)
    with pytest.raises(MachineError, match="no process can be started"):
        list(LocalPool(1, RUN_LIMITS).play([Group((planned(),))]))


def test_a_pool_that_was_stopped_plays_no_group_and_stops_what_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pool = LocalPool(1, RUN_LIMITS)
    stopped: list[str] = []
    monkeypatch.setattr(local_pool, "play_group", lambda *_: pytest.fail("it played"))
    pool._started(cast(Worker, SimpleNamespace(stop=lambda: stopped.append("running"))))
    assert stopped == []
    with pool._stopping_all():
        pass
    pool._started(cast(Worker, SimpleNamespace(stop=lambda: stopped.append("late"))))
    assert stopped == ["running", "late"]
    pool._play(Group((planned(),)), {})
    assert pool._news.get() is None


@pytest.mark.parametrize(
    ("end", "ending", "detail", "closed"),
    [
        (RaisedInWorker("KeyError", "builtins", "no", output="x"), "raised", "raised: KeyError: no", True),
        (RanOutOfMemory("no room", output="x"), "out of memory", "out of memory: no room", False),
        (Exited(3, output="x"), "crashed", "crashed: exited with 3", False),
    ],
)
def test_an_end_without_a_fact_is_no_verdict(
    end: CallResult, ending: str, detail: str, *, closed: bool
) -> None:
    done: list[bool] = []
    worker = SimpleNamespace(play=lambda _: end, close=lambda: done.append(True))
    result = play_group._play(cast(CaseWorker, worker), planned())
    assert (result.case.ending, result.case.output, bool(done)) == (ending, "x", closed)
    assert {row.verdict for row in result.rows} == {"ERROR"}
    assert all(row.detail.startswith(detail) for row in result.rows)


@pytest.mark.parametrize(("own", "kept"), [("its own", "its own"), ("", "of the worker")])
def test_the_output_of_a_worker_is_that_of_a_case_without_one(own: str, kept: str) -> None:
    result = lost_result(planned(), CaseEnding.CRASHED, "ended", own, 0.0)
    assert play_group._with_output(result, "of the worker").case.output == kept
