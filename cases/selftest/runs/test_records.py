"""What a run writes down of one case: how it ended, what was expected of each rule."""

from dataclasses import replace

import pytest

from cases.selftest.oracles.written_observations import (
    COMPILED,
    ONE_GRAPH,
    QUIET,
    RIGHT,
    TRACE,
    forward,
    observed,
)
from deepstack_harness.contract.case import Case, Observation
from deepstack_harness.contract.rules import Rule, Verdict
from deepstack_harness.play.cells import Cell, _judged
from deepstack_harness.results.records import against
from deepstack_harness.runs.case_record import played
from deepstack_harness.runs.task_result import Done, Ending, lost
from deepstack_harness.runs.tasks import Task


def task(*broken: Rule) -> Task:
    return Task(Case("qwen3_vl", "reference", TRACE, COMPILED), broken, "43602", "a note")


def done(seen: Observation, *broken: Rule) -> Done:
    one = task(*broken)
    return played(one, Cell(one.planned, seen, tuple(_judged(one.case, seen))), 1.5)


def verdict(found: Done, rule: str) -> str:
    return next(row.verdict for row in found.rows if row.rule == rule)


def test_a_reached_recompile_limit_is_an_ending_and_breaks_its_rule() -> None:
    limited = replace(forward(RIGHT), graphs=replace(ONE_GRAPH, limit_hit=True))
    found = done(limited)
    assert found.case.ending == Ending.RECOMPILE_LIMIT
    assert Ending(found.case.ending).is_whole  # the process goes on
    assert verdict(found, "R11") == "FAIL"
    assert done(forward(RIGHT)).case.ending == Ending.PLAYED


def test_a_case_whose_ranks_died_has_crashed_and_shows_what_they_printed() -> None:
    found = done(replace(observed(error="rank 1 of 2 ended by SIGSEGV\nrank 1 printed: x"), graphs=None))
    assert found.case.ending == Ending.CRASHED
    assert found.case.output.endswith("rank 1 printed: x")


def test_what_was_measured_is_written_down() -> None:
    case = done(forward(RIGHT, attended=16)).case
    assert case.distances == RIGHT
    assert (case.graphs, case.recompiles, case.graph_budget) == (1, 0, 1)
    assert [(step.step, step.asked, step.processed) for step in case.steps] == [
        ("profile 16", 16, None), ("set 16", None, None), ("forward 16", 16, 16),
    ]  # fmt: skip
    assert (case.group, case.incident, case.note) == ("qwen3_vl eager/drop_all cpu", "43602", "a note")


def test_a_step_that_is_wrong_without_a_payload_is_told_beside_the_effect_of_one() -> None:
    first, middle, last = forward(replace(QUIET, eager=4.0)).steps  # the last reads what was cleared
    case = done(observed(replace(first, distances=RIGHT), middle, last)).case
    assert case.distances == replace(RIGHT, eager=4.0)


@pytest.mark.parametrize(
    ("said", "expected", "written"),
    [
        (Verdict.FAIL, True, Verdict.XFAIL),
        (Verdict.PASS, True, Verdict.IMPROVED),
        (Verdict.SKIP, True, Verdict.IMPROVED),
        (Verdict.ERROR, True, Verdict.ERROR),
        (Verdict.FAIL, False, Verdict.FAIL),
        (Verdict.PASS, False, Verdict.PASS),
        (Verdict.SKIP, False, Verdict.SKIP),
    ],
)
def test_a_verdict_is_seen_beside_what_was_expected(said: Verdict, expected: bool, written: Verdict) -> None:
    assert against(said, expected=expected) is written


def test_a_row_says_whether_its_rule_was_to_be_broken() -> None:
    found = done(forward(RIGHT), Rule.R1)
    assert {row.rule for row in found.rows if row.expected} == {"R1"}
    assert verdict(found, "R1") == "XFAIL"  # the profile run of the trace is answered with None
    unknown = Task(task().case, None)
    rows = lost(unknown, Ending.TIMED_OUT, "no answer within 3 s", "", 3.0).rows
    assert {(row.verdict, row.expected, row.detail) for row in rows} == {
        ("ERROR", None, "timed out: no answer within 3 s")
    }
