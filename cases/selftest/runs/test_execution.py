"""What a run plays (the matrix, selections, groups, shards, case numbers), and the results of its cases."""

from dataclasses import replace
from pathlib import Path

import pytest

from cases.selftest.contract.oracles.written_observations import (
    COMPILED,
    ONE_GRAPH,
    QUIET,
    RIGHT,
    TRACE,
    forward,
    observed,
)
from deepstack_harness.catalogue.buffers import REVISIONS
from deepstack_harness.catalogue.incidents import CONTRACT_RUNS
from deepstack_harness.catalogue.plans import CAPTURE_TRACES, CONTRACT_TRACES
from deepstack_harness.contract.arm import Backend
from deepstack_harness.contract.case import Case, PlannedCase, live_buffer, registered
from deepstack_harness.contract.observation import Observation
from deepstack_harness.contract.oracles.judge import judge_case
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.verdicts import Verdict
from deepstack_harness.errors import UsageError
from deepstack_harness.runs.case_result import CaseResult, lost_result, result_in_test, result_of
from deepstack_harness.runs.execution import COLUMNS, Execution, RunRequest, Tier, matrix, select
from deepstack_harness.runs.pools import fingerprint, grouped, part_of
from deepstack_harness.runs.records import CaseEnding, Shard


@pytest.fixture(scope="module")
def nightly() -> list[PlannedCase]:
    return matrix(Tier.NIGHTLY, ["cpu"])


def test_ci_has_at_most_60_groups_and_nightly_all_of_it(nightly: list[PlannedCase]) -> None:
    ci = grouped(matrix(Tier.CI, ["cpu"]))
    assert 10 < len(ci) <= 60
    daily = {planned.id for group in ci for planned in group.cases}
    assert daily < {planned.id for planned in nightly}


def test_a_case_is_planned_once_and_nothing_contradicts_itself(nightly: list[PlannedCase]) -> None:
    cases = [planned for group in grouped(nightly) for planned in group.cases]
    assert len({planned.id for planned in cases}) == len(cases) < len(nightly)
    assert len({(planned.id, planned.must_break) for planned in nightly}) == len(cases)


def test_the_contract_is_played_on_every_revision_and_expected_to_pass_on_the_reference() -> None:
    runs = CONTRACT_RUNS.entries
    assert {run.trace for run in runs} >= {*CONTRACT_TRACES, *CAPTURE_TRACES}
    for trace in (*CONTRACT_TRACES, CAPTURE_TRACES[0]):
        assert {name for run in runs if run.trace == trace for name in run.revisions} == set(REVISIONS)
    assert not any("reference" in run.broken for run in runs)


def test_every_device_is_planned() -> None:
    devices = {group.device for group in grouped(matrix(Tier.CI, ["cpu", "cuda"]))}
    assert devices == {"cpu", "cuda"}


@pytest.mark.parametrize(
    ("selection", "column", "values"),
    [
        (["family=granite4_vision", "arm=eager"], "family", {"granite4_vision"}),
        (["family=granite*", "family=qwen3_vl", "family!=*:*"], "family", {"granite4_vision", "qwen3_vl"}),
        (["dtype!=float32", "dtype!=bfloat16"], "dtype", {"float16"}),
        (["incident=43602", "incident=16785"], "incident", {"43602", "16785"}),
        (["trace=*resize*"], "trace", None),
        (["trace=cap 16: profile 16; *"], "trace", None),
    ],
)
def test_a_selection_is_words_over_the_columns(
    nightly: list[PlannedCase], selection: list[str], column: str, values: set[str] | None
) -> None:
    cases = select(nightly, selection)
    assert 0 < len(cases) < len(nightly)
    if values is not None:
        seen = {str(getattr(planned.case, column, planned.incident)) for planned in cases}
        assert seen == values


def test_an_incident_has_its_cases_though_it_shares_them(nightly: list[PlannedCase]) -> None:
    """43602 and 53516 play the same cases."""
    for incident in {planned.incident for planned in nightly if planned.incident}:
        assert {planned.incident for planned in select(nightly, [f"incident={incident}"])} == {incident}


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("family==qwen3_vl", "'family==qwen3_vl' is no KEY=GLOB"),
        ("colour=red", "has the unknown key 'colour'"),
        ("family=qwen3_vl arm=eager", "'family=qwen3_vl arm=eager' matches none"),
        ("family == 'qwen3_vl'", "no longer read: write family=qwen3_vl; "),
        ("family=='qwen3_vl' and trace != \"cap 4: *\"", "read: write family=qwen3_vl 'trace!=cap 4: [*]'; "),
        ("incident in ['43602']", "expressions are no longer read"),
    ],
)
def test_a_word_that_does_not_read_or_fits_no_case_is_quoted(
    nightly: list[PlannedCase], word: str, said: str
) -> None:
    with pytest.raises(UsageError) as caught:
        select(nightly, [word])
    assert said in str(caught.value)
    assert all(column in str(caught.value) for column in COLUMNS)


def test_no_word_selects_every_case(nightly: list[PlannedCase]) -> None:
    assert select(nightly, []) == nightly


def test_groups_share_family_arm_and_device(nightly: list[PlannedCase]) -> None:
    for group in grouped(nightly):
        assert {planned.group for planned in group.cases} == {group.name}


def test_the_fastest_groups_come_first_if_requested(tmp_path: Path) -> None:
    selection = ("family=qwen3_vl", "guards=drop_all")
    orders = []
    for cheapest_first in (True, False):
        request = RunRequest(selection, cheapest_first=cheapest_first)
        execution = Execution(request, tmp_path / str(cheapest_first), resume=False)
        execution.writer.close()
        orders.append([group.cases[0].case.arm.backend for group in execution.groups])
    assert orders[0][0] is Backend.EAGER
    assert orders[0][-1] is Backend.INDUCTOR
    assert orders[1][0] is Backend.INDUCTOR
    assert sorted(orders[0]) == sorted(orders[1])


def test_shards_are_disjoint_and_together_everything(nightly: list[PlannedCase]) -> None:
    groups = grouped(nightly)
    parts = [part_of(groups, Shard(index, 3)) for index in (1, 2, 3)]
    assert sorted(group.name for part in parts for group in part) == sorted(group.name for group in groups)
    again = [part_of(grouped(reversed(nightly)), Shard(index, 3)) for index in (1, 2, 3)]
    assert [[group.name for group in part] for part in parts] == [
        [group.name for group in part] for part in again
    ]
    assert fingerprint(groups) == fingerprint([group for part in parts for group in part])


@pytest.mark.parametrize("text", ["0/3", "4/3", "3", "a/b", "1/0", "1/3/3", "-1/3"])
def test_a_bad_shard_is_quoted(text: str) -> None:
    with pytest.raises(UsageError, match="I/N"):
        Shard.parse(text)


def test_the_number_of_a_case_stays(nightly: list[PlannedCase]) -> None:
    """It is the key of every comparison: another one makes all of history missing."""
    trace = "cap 16: profile 16; set 16; forward 16"
    cases = [
        planned.id
        for planned in select(nightly, ["incident=43602", "arm=eager", "revision=pr40145"])
        if str(planned.case.trace) == trace
    ]
    assert cases == ["6a398dbad390"]


CASE = Case("qwen3_vl", registered("reference"), TRACE, COMPILED)


def planned(*broken: Rule) -> PlannedCase:
    return PlannedCase(CASE, frozenset(broken), "a note", "43602")


def result(seen: Observation, *broken: Rule) -> CaseResult:
    return result_of(judge_case(planned(*broken), seen), 1.5)


def verdict(actual: CaseResult, rule: Rule) -> Verdict:
    return next(row.verdict for row in actual.rows if row.rule is rule)


def test_a_reached_recompile_limit_is_an_ending_and_breaks_its_rule() -> None:
    limited = replace(forward(RIGHT), graphs=replace(ONE_GRAPH, limit_hit=True))
    actual = result(limited)
    assert actual.case.ending is CaseEnding.RECOMPILE_LIMIT
    assert actual.case.ending.is_whole  # the process goes on
    assert verdict(actual, Rule.GRAPHS) is Verdict.FAIL
    assert result(forward(RIGHT)).case.ending is CaseEnding.PLAYED


def test_a_case_whose_ranks_died_has_crashed_and_shows_what_they_printed() -> None:
    actual = result(replace(observed(error="rank 1 of 2 ended by SIGSEGV\nrank 1 printed: x"), graphs=None))
    assert actual.case.ending is CaseEnding.CRASHED
    assert actual.case.output.endswith("rank 1 printed: x")


def test_what_was_measured_is_written_down() -> None:
    case = result(forward(RIGHT, attended=16)).case
    assert case.distances == RIGHT
    assert (case.graphs, case.recompiles, case.graph_budget) == (1, 0, 1)
    assert [(step.step, step.asked, step.processed) for step in case.steps] == [
        ("profile 16", 16, None), ("set 16", None, None), ("forward 16", 16, 16),
    ]  # fmt: skip
    assert (case.group, case.incident, case.note) == ("qwen3_vl eager/drop_all cpu", "43602", "a note")
    assert (case.case, case.buffer) == (CASE.id, CASE.buffer)


def test_a_step_that_is_wrong_without_a_payload_is_shown_with_the_effect_of_one() -> None:
    first, middle, last = forward(replace(QUIET, eager=4.0)).steps  # the last reads what was cleared
    case = result(observed(replace(first, distances=RIGHT), middle, last)).case
    assert case.distances == replace(RIGHT, eager=4.0)


def test_a_row_states_whether_its_rule_was_to_be_broken() -> None:
    actual = result(forward(RIGHT), Rule.STRUCTURE, Rule.FRESHNESS, Rule.PLACEMENT)
    assert {row.rule for row in actual.rows if row.expected} == {
        Rule.STRUCTURE,
        Rule.FRESHNESS,
        Rule.PLACEMENT,
    }
    assert (
        verdict(actual, Rule.STRUCTURE) is Verdict.XFAIL
    )  # get returns None in the profile run of the trace
    assert verdict(actual, Rule.FRESHNESS) is Verdict.MISSING  # nothing was set twice
    assert verdict(actual, Rule.PLACEMENT) is Verdict.IMPROVED


def test_where_no_catalogue_speaks_nothing_is_expected() -> None:
    rows = lost_result(PlannedCase(CASE, None), CaseEnding.TIMED_OUT, "no answer within 3 s", "", 3.0).rows
    assert {(row.verdict, row.expected, row.detail) for row in rows} == {
        (Verdict.ERROR, None, "timed out: no answer within 3 s")
    }


def test_a_lost_case_shows_what_was_printed_last() -> None:
    actual = lost_result(
        planned(Rule.STRUCTURE), CaseEnding.CRASHED, "ended by SIGSEGV", "first\nlast words\n", 0.1
    )
    assert {row.detail for row in actual.rows} == {
        "crashed: ended by SIGSEGV; printed at the end: last words"
    }
    assert {row.verdict for row in actual.rows} == {Verdict.ERROR}
    assert actual.case.output == "first\nlast words\n"
    assert actual.case.expected == (Rule.STRUCTURE,)


def test_two_tests_may_judge_the_same_case() -> None:
    played = result(forward(RIGHT))
    actual = [
        result_in_test(played, node, number) for node, number in (("a::t", 1), ("a::t", 2), ("b::t", 1))
    ]
    assert len({change.case.case for change in actual} | {CASE.id}) == 4
    for change in actual:
        assert {row.case for row in change.rows} == {change.case.case}
    assert {row.node_id for row in actual[1].rows} == {"a::t"}
    assert actual[1].case.note == "a::t #2"


def test_a_class_inside_a_function_has_no_script() -> None:
    inside = replace(CASE, buffer=live_buffer("test_it:test_it.<locals>.Mine"))
    judged_case = judge_case(PlannedCase(inside, None), forward(RIGHT))
    assert Rule.STRUCTURE in judged_case.broken
    assert result_of(judged_case, 0.0).case.script is None
    outside = replace(CASE, buffer=live_buffer("test_it:Mine"))
    script = result_of(judge_case(PlannedCase(outside, None), forward(RIGHT)), 0.0).case.script
    assert script is not None
    assert "test_it" in script


def test_the_program_of_a_case_shows_its_worst_rule() -> None:
    """A program without torch.compile showed R1 of cases whose output was wrong (R0) under 43602."""
    wrong = forward(replace(RIGHT, eager=4.6, effect=4.6))
    for name in ("pr40145", "original", "reference"):
        case = replace(CASE, buffer=registered(name))
        judged_case = judge_case(PlannedCase(case, None, incident="43602"), wrong)
        assert {Rule.OUTPUT, Rule.STRUCTURE} <= judged_case.broken
        script = result_of(judged_case, 0.0).case.script
        assert script is not None
        assert "torch.compile(" in script
        no_incident = judge_case(PlannedCase(case, None), wrong)
        assert result_of(no_incident, 0.0).case.script is None  # a program of only the buffer shows less
