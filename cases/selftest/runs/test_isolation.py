"""Cases that crash, hang, eat, leave or flood are told as findings, and all the others are played."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pandas as pd
import pytest

from cases.selftest.workers.processes import has_ended
from deepstack_harness.results import RunFrames, read_run
from deepstack_harness.runs.execution import Execution, RunRequest
from deepstack_harness.runs.groups import Group, grouped
from deepstack_harness.runs.local_pool import LocalPool
from deepstack_harness.runs.play_group import RUN_LIMITS
from deepstack_harness.runs.selection import Tier, matrix, select
from deepstack_harness.workers.supervised import TAIL

pytestmark = pytest.mark.xdist_group("runaway")
MODULE = "cases.selftest.runs.runaway_buffers"
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
SELECTION = "trace.str.contains('set 24') or trace.str.endswith('set 3; get 9; get 3')"
LIMITS = replace(RUN_LIMITS, call_s=8, memory=2 * 2**30)
OTHER, RARE = "cap 16: set 9; get 9; set 3", "cap 16: set 16; get 16; get 20"


NAMES = [*DAILY, *(pytest.param(name, marks=pytest.mark.slow) for name in NIGHTLY)]

RunOf = Callable[[str], RunFrames]


@pytest.fixture(scope="module")
def run_of(tmp_path_factory: pytest.TempPathFactory) -> RunOf:
    """The run with the buffer of this name: one for the daily ones, one for the others."""

    @cache
    def played(names: tuple[str, ...]) -> RunFrames:
        folder = tmp_path_factory.mktemp("runs") / "runaway"
        buffers = tuple(f"{MODULE}:{name}" for name in names)
        one = Execution(RunRequest(SELECTION, buffers=buffers, limits=LIMITS), folder, resume=False)
        assert len(list(one.play())) == 2 * len(names)
        one.writer.close()
        assert sum(path.stat().st_size for path in folder.iterdir()) < 2**20  # of what was printed
        return read_run(folder)

    return lambda name: played(DAILY if name in DAILY else NIGHTLY)


def of(run: RunFrames, name: str, trace: str) -> tuple[pd.Series, pd.DataFrame]:
    chosen = (run.cases["subject"] == f"{MODULE}:{name}") & run.cases["trace"].str.startswith(trace)
    (case,) = [case for _, case in run.cases[chosen].iterrows()]
    return case, run.rows[run.rows["case"] == case["case"]]


@pytest.mark.parametrize("name", NAMES)
def test_a_method_that_ends_its_process_breaks_the_rule_of_its_step(run_of: RunOf, name: str) -> None:
    case, rows = of(run_of(name), name, RARE)
    assert case["ending"] == ENDINGS[name]
    if name == "Talks":
        assert "ERROR" not in set(rows["verdict"])
        return
    assert set(rows["verdict"]) <= {"FAIL", "ERROR", "PASS"}  # no rule is left out
    (broken,) = rows[rows["verdict"] == "FAIL"]["detail"]
    assert TOLD[name] in broken


@pytest.mark.parametrize("name", NAMES)
def test_the_other_case_of_its_buffer_is_played(run_of: RunOf, name: str) -> None:
    case, rows = of(run_of(name), name, OTHER)
    assert case["ending"] == "played"
    assert set(rows["verdict"]) == {"PASS", "SKIP"}


def test_what_was_printed_last_is_kept(run_of: RunOf) -> None:
    crashed, _ = of(run_of("Segfaults"), "Segfaults", RARE)
    assert crashed["output"] == "last words\n"
    flooded, _ = of(run_of("Floods"), "Floods", RARE)
    assert flooded["output"] == "x" * TAIL


def group_of(name: str) -> list[Group]:
    return grouped(select(matrix(Tier.CI, ["cpu"], [f"{MODULE}:{name}"]), SELECTION))


def test_a_run_that_is_given_up_ends_its_processes() -> None:
    """As Ctrl-C does: the case that hangs would go on for 600 s."""
    pool = LocalPool(1, replace(RUN_LIMITS, call_s=600))
    ended = pool.play(group_of("Hangs"))
    next(ended)  # of two: the other one hangs, or is about to
    pids = [worker.pid for worker in pool._workers]
    ended.close()
    assert pids
    assert all(pid and has_ended(pid) for pid in pids)


def test_a_process_that_does_not_start_is_tried_once_for_its_group() -> None:
    first, second = LocalPool(1, replace(RUN_LIMITS, start_s=0.01)).play(group_of("Talks"))
    assert {row.verdict for row in (*first.rows, *second.rows)} == {"ERROR"}
    assert first.case.ending == second.case.ending == "timed out"
    assert first.case.case in second.rows[0].detail
