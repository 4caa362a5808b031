"""Results of cases: how a case ended, its figures, and its rows beside what was expected."""

from dataclasses import replace

from cases.selftest.contract.oracles.written_observations import (
    COMPILED,
    ONE_GRAPH,
    QUIET,
    RIGHT,
    TRACE,
    forward,
    observed,
)
from deepstack_harness.contract.case import Case, PlannedCase, live_buffer, registered
from deepstack_harness.contract.observation import Observation
from deepstack_harness.contract.oracles.judge import judge_case
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.verdicts import Verdict
from deepstack_harness.runs.case_result import CaseResult, in_test, lost_result, result_of
from deepstack_harness.runs.records import CaseEnding

CASE = Case("qwen3_vl", registered("reference"), TRACE, COMPILED)


def planned(*broken: Rule) -> PlannedCase:
    return PlannedCase(CASE, frozenset(broken), "a note", "43602")


def result(seen: Observation, *broken: Rule) -> CaseResult:
    return result_of(judge_case(planned(*broken), seen), 1.5)


def verdict(found: CaseResult, rule: Rule) -> Verdict:
    return next(row.verdict for row in found.rows if row.rule is rule)


def test_a_reached_recompile_limit_is_an_ending_and_breaks_its_rule() -> None:
    limited = replace(forward(RIGHT), graphs=replace(ONE_GRAPH, limit_hit=True))
    found = result(limited)
    assert found.case.ending is CaseEnding.RECOMPILE_LIMIT
    assert found.case.ending.is_whole  # the process goes on
    assert verdict(found, Rule.R11) is Verdict.FAIL
    assert result(forward(RIGHT)).case.ending is CaseEnding.PLAYED


def test_a_case_whose_ranks_died_has_crashed_and_shows_what_they_printed() -> None:
    found = result(replace(observed(error="rank 1 of 2 ended by SIGSEGV\nrank 1 printed: x"), graphs=None))
    assert found.case.ending is CaseEnding.CRASHED
    assert found.case.output.endswith("rank 1 printed: x")


def test_what_was_measured_is_written_down() -> None:
    case = result(forward(RIGHT, attended=16)).case
    assert case.distances == RIGHT
    assert (case.graphs, case.recompiles, case.graph_budget) == (1, 0, 1)
    assert [(step.step, step.asked, step.processed) for step in case.steps] == [
        ("profile 16", 16, None), ("set 16", None, None), ("forward 16", 16, 16),
    ]  # fmt: skip
    assert (case.group, case.incident, case.note) == ("qwen3_vl eager/drop_all cpu", "43602", "a note")
    assert (case.case, case.buffer) == (CASE.id, CASE.buffer)


def test_a_step_that_is_wrong_without_a_payload_is_told_beside_the_effect_of_one() -> None:
    first, middle, last = forward(replace(QUIET, eager=4.0)).steps  # the last reads what was cleared
    case = result(observed(replace(first, distances=RIGHT), middle, last)).case
    assert case.distances == replace(RIGHT, eager=4.0)


def test_a_row_says_whether_its_rule_was_to_be_broken() -> None:
    found = result(forward(RIGHT), Rule.R1, Rule.R3, Rule.R7)
    assert {row.rule for row in found.rows if row.expected} == {Rule.R1, Rule.R3, Rule.R7}
    assert verdict(found, Rule.R1) is Verdict.XFAIL  # the profile run of the trace is answered with None
    assert verdict(found, Rule.R3) is Verdict.MISSING  # nothing was set twice
    assert verdict(found, Rule.R7) is Verdict.IMPROVED


def test_where_no_catalogue_speaks_nothing_is_expected() -> None:
    rows = lost_result(PlannedCase(CASE, None), CaseEnding.TIMED_OUT, "no answer within 3 s", "", 3.0).rows
    assert {(row.verdict, row.expected, row.detail) for row in rows} == {
        (Verdict.ERROR, None, "timed out: no answer within 3 s")
    }


def test_a_lost_case_tells_what_was_printed_last() -> None:
    found = lost_result(planned(Rule.R1), CaseEnding.CRASHED, "ended by SIGSEGV", "first\nlast words\n", 0.1)
    assert {row.detail for row in found.rows} == {"crashed: ended by SIGSEGV; printed at the end: last words"}
    assert {row.verdict for row in found.rows} == {Verdict.ERROR}
    assert found.case.output == "first\nlast words\n"
    assert found.case.expected == (Rule.R1,)


def test_two_tests_may_judge_the_same_case() -> None:
    played = result(forward(RIGHT))
    found = [in_test(played, node, number) for node, number in (("a::t", 1), ("a::t", 2), ("b::t", 1))]
    assert len({one.case.case for one in found} | {CASE.id}) == 4
    for one in found:
        assert {row.case for row in one.rows} == {one.case.case}
    assert {row.node_id for row in found[1].rows} == {"a::t"}
    assert found[1].case.note == "a::t #2"


def test_a_class_inside_a_function_has_no_script() -> None:
    inside = replace(CASE, buffer=live_buffer("test_it:test_it.<locals>.Mine"))
    judged = judge_case(PlannedCase(inside, None), forward(RIGHT))
    assert Rule.R1 in judged.broken
    assert result_of(judged, 0.0).case.script is None
    outside = replace(CASE, buffer=live_buffer("test_it:Mine"))
    script = result_of(judge_case(PlannedCase(outside, None), forward(RIGHT)), 0.0).case.script
    assert script is not None
    assert "test_it" in script


def test_the_program_beside_a_case_shows_its_worst_rule() -> None:
    """A program without torch.compile showed R1 of cases whose output was wrong (R0) under 43602."""
    wrong = forward(replace(RIGHT, eager=4.6, effect=4.6))
    for name in ("pr40145", "original", "reference"):
        case = replace(CASE, buffer=registered(name))
        judged = judge_case(PlannedCase(case, None, incident="43602"), wrong)
        assert {Rule.R0, Rule.R1} <= judged.broken
        script = result_of(judged, 0.0).case.script
        assert script is not None
        assert "torch.compile(" in script
        no_incident = judge_case(PlannedCase(case, None), wrong)
        assert result_of(no_incident, 0.0).case.script is None  # a program of the buffer alone shows less
