"""Pools of workers: GPUs, and what cases that crash, hang or eat memory do to the others."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import cast

import pandas as pd
import pytest

from cases.selftest.play.misbehaving_buffers import misbehaving
from cases.selftest.workers.processes import has_ended
from deepstack_harness.contract.arm import EAGER
from deepstack_harness.contract.case import Case, PlannedCase, registered
from deepstack_harness.contract.trace import Trace
from deepstack_harness.errors import MachineError
from deepstack_harness.play.case_worker import CaseWorker
from deepstack_harness.runs import pools
from deepstack_harness.runs.case_result import lost_result
from deepstack_harness.runs.execution import Execution, RunRequest, Tier, matrix, select
from deepstack_harness.runs.frames import RunFrames, read_run
from deepstack_harness.runs.pools import RUN_LIMITS, Group, LocalPool, grouped
from deepstack_harness.runs.records import CaseEnding
from deepstack_harness.workers.limits import Limits
from deepstack_harness.workers.outcomes import CallResult, EndKind, RaisedInWorker, WorkerEnd, end_of
from deepstack_harness.workers.supervised import TAIL


def planned() -> PlannedCase:
    return PlannedCase(Case("qwen3_vl", registered("reference"), Trace.parse("cap 4: get 4"), EAGER), None)


def test_an_error_of_ours_in_a_thread_ends_the_run_with_that_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise MachineError("no process can be started")

    monkeypatch.setattr(pools, "play_group", broken)
    with pytest.raises(MachineError, match="no process can be started"):
        list(LocalPool(1, RUN_LIMITS).play([Group((planned(),))]))


@pytest.mark.parametrize(
    ("end", "ending", "detail", "closed"),
    [
        (RaisedInWorker("KeyError", "builtins", "no", output="x"), "raised", "raised: KeyError: no", True),
        (
            WorkerEnd(EndKind.OUT_OF_MEMORY, ("no room",), output="x"),
            "out of memory",
            "out of memory: no room",
            False,
        ),
        (end_of(3, output="x"), "crashed", "crashed: exited with 3", False),
    ],
)
def test_an_end_without_a_fact_is_no_verdict(
    end: CallResult, ending: str, detail: str, *, closed: bool
) -> None:
    done: list[bool] = []
    worker = SimpleNamespace(play=lambda _: end, close=lambda: done.append(True))
    result = pools._play(cast(CaseWorker, worker), planned())
    assert (result.case.ending, result.case.output, bool(done)) == (ending, "x", closed)
    assert {row.verdict for row in result.rows} == {"ERROR"}
    assert all(row.detail.startswith(detail) for row in result.rows)


@pytest.mark.parametrize(("own", "kept"), [("its own", "its own"), ("", "of the worker")])
def test_the_output_of_a_worker_is_that_of_a_case_without_one(own: str, kept: str) -> None:
    result = lost_result(planned(), CaseEnding.CRASHED, "ended", own, 0.0)
    assert pools._with_output(result, "of the worker").case.output == kept


pytestmark = pytest.mark.xdist_group("runaway")
DAILY = ("Segfaults", "Hangs", "Floods")
NIGHTLY = ("Eats", "Leaves", "Talks")
"""`cases/selftest/play/test_case_worker.py` plays these every day, without a run around them."""
ENDINGS = {
    "Segfaults": "crashed", "Hangs": "timed out", "Eats": "out of memory", "Leaves": "crashed",
    "Talks": "played", "Floods": "crashed",
}  # fmt: skip
TOLD = {
    "Segfaults": "SIGSEGV: ended by SIGSEGV", "Hangs": "timeout: no answer within", "Eats": "out of memory: ",
    "Leaves": "exit: exited with 0", "Floods": "output flood: printed ",
}  # fmt: skip
SELECTION = ("trace=*set 24*", "trace=*set 3; get 9; get 3")
LIMITS = replace(RUN_LIMITS, call_s=4, memory=2 * 2**30)
OTHER, RARE = "cap 16: set 9; get 9; set 3", "cap 16: set 16; get 16; get 20"


NAMES = [*DAILY, *(pytest.param(name, marks=pytest.mark.slow) for name in NIGHTLY)]


def buffer_of(name: str) -> str:
    """Return the buffer that misbehaves when the 24 tokens of one trace of the contract are set."""
    return misbehaving(name, "set 24")


RunOf = Callable[[str], RunFrames]


@pytest.fixture(scope="module")
def run_of(tmp_path_factory: pytest.TempPathFactory) -> RunOf:
    """The run with the buffer of this name: one for the daily ones, one for the others."""

    @cache
    def played(names: tuple[str, ...]) -> RunFrames:
        folder = tmp_path_factory.mktemp("runs") / "runaway"
        buffers = tuple(map(buffer_of, names))
        execution = Execution(RunRequest(SELECTION, buffers=buffers, limits=LIMITS), folder, resume=False)
        assert len(list(execution.play())) == 2 * len(names)
        execution.writer.close()
        assert sum(path.stat().st_size for path in folder.iterdir()) < 2**20  # of what was printed
        return read_run(folder)

    return lambda name: played(DAILY if name in DAILY else NIGHTLY)


def case_and_rows(run: RunFrames, name: str, trace: str) -> tuple[pd.Series, pd.DataFrame]:
    chosen = (run.cases["subject"] == buffer_of(name)) & run.cases["trace"].str.startswith(trace)
    (case,) = [case for _, case in run.cases[chosen].iterrows()]
    return case, run.rows[run.rows["case"] == case["case"]]


@pytest.mark.parametrize("name", NAMES)
def test_a_method_that_ends_its_process_breaks_the_rule_of_its_step(run_of: RunOf, name: str) -> None:
    case, rows = case_and_rows(run_of(name), name, RARE)
    assert case["ending"] == ENDINGS[name]
    if name == "Talks":
        assert "ERROR" not in set(rows["verdict"])
        return
    assert set(rows["verdict"]) <= {"FAIL", "ERROR", "PASS"}  # no rule is left out
    (broken,) = rows[rows["verdict"] == "FAIL"]["detail"]
    assert TOLD[name] in broken


@pytest.mark.parametrize("name", NAMES)
def test_the_other_case_of_its_buffer_is_played(run_of: RunOf, name: str) -> None:
    case, rows = case_and_rows(run_of(name), name, OTHER)
    assert case["ending"] == "played"
    assert set(rows["verdict"]) == {"PASS", "SKIP"}


def test_what_was_printed_last_is_retained(run_of: RunOf) -> None:
    crashed, _ = case_and_rows(run_of("Segfaults"), "Segfaults", RARE)
    assert crashed["output"] == "last words\n"
    flooded, _ = case_and_rows(run_of("Floods"), "Floods", RARE)
    assert flooded["output"] == "x" * TAIL


def group_of(name: str) -> list[Group]:
    return grouped(select(matrix(Tier.CI, ["cpu"], [buffer_of(name)]), SELECTION))


def test_a_run_that_is_given_up_ends_its_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Ctrl-C does: the case that hangs would go on for 600 s."""
    made: list[CaseWorker] = []

    class Recorded(CaseWorker):
        def __init__(self, limits: Limits) -> None:
            super().__init__(limits)
            made.append(self)

    monkeypatch.setattr(pools, "CaseWorker", Recorded)
    ended = LocalPool(1, replace(RUN_LIMITS, call_s=600)).play(group_of("Hangs"))
    next(ended)  # of two: the other one hangs, or is about to
    (pid,) = [worker.pid for worker in made]
    ended.close()
    assert pid
    assert has_ended(pid)


def test_a_process_that_does_not_start_is_tried_once_for_its_group() -> None:
    first, second = LocalPool(1, replace(RUN_LIMITS, start_s=1e-9)).play(group_of("Talks"))
    assert {row.verdict for row in (*first.rows, *second.rows)} == {"ERROR"}
    assert first.case.ending == second.case.ending == "timed out"
    assert first.case.case in second.rows[0].detail
