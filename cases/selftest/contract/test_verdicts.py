"""Verdicts, judgements and rows: their order, what an expectation changes, and the public columns."""

from collections.abc import Collection
from dataclasses import fields, replace

import msgspec
import pytest
from typing_extensions import override

from deepstack_harness.contract.arm import ArmSpec
from deepstack_harness.contract.case import Case, registered, source_buffer
from deepstack_harness.contract.rules import Promise, Rule
from deepstack_harness.contract.trace import Trace
from deepstack_harness.contract.verdicts import (
    BROKEN,
    KEPT,
    OPENED,
    SCHEMA_VERSION,
    UNEXPECTED,
    WORST_FIRST,
    Effect,
    FaultKind,
    Judgement,
    Row,
    RuleVerdicts,
    Verdict,
    against_expectation,
    row_against_expectation,
    row_of_case,
    worst,
)

KNOWN = {
    Verdict.FAIL: Verdict.XFAIL,
    Verdict.PASS: Verdict.IMPROVED,
    Verdict.SKIP: Verdict.MISSING,
    Verdict.ERROR: Verdict.ERROR,
}


@pytest.mark.parametrize(("said", "beside"), KNOWN.items())
def test_a_known_failure_changes_the_verdict(said: Verdict, beside: Verdict) -> None:
    assert against_expectation(said, broken=True) is beside


@pytest.mark.parametrize("said", KNOWN)
@pytest.mark.parametrize("broken", [False, None])
def test_without_a_known_failure_nothing_changes(said: Verdict, broken: bool | None) -> None:
    assert against_expectation(said, broken=broken) is said


def test_an_expectation_that_is_met_is_the_only_broken_rule_that_is_not_red() -> None:
    assert {verdict for verdict in KNOWN.values() if verdict not in UNEXPECTED} == {Verdict.XFAIL}
    assert {Verdict.XFAIL} == BROKEN - UNEXPECTED
    assert {Verdict.XFAIL} == OPENED - UNEXPECTED
    assert {Verdict.IMPROVED} == KEPT & UNEXPECTED


def test_the_order_has_every_verdict_and_the_unexpected_first() -> None:
    assert set(WORST_FIRST) == set(Verdict)
    red = [verdict in UNEXPECTED for verdict in WORST_FIRST]
    assert red == sorted(red, reverse=True)
    assert worst([Verdict.SKIP, Verdict.XFAIL, Verdict.PASS]) is Verdict.XFAIL


class Judged(RuleVerdicts):
    """A rule with each verdict, in the order of both."""

    @property
    @override
    def verdicts(self) -> Collection[tuple[Rule, Verdict]]:
        """The rules with their verdicts."""
        return list(zip(Rule, Verdict, strict=False))


def test_rules_are_grouped_by_what_their_verdicts_mean() -> None:
    found, verdict_of = Judged(), dict(zip(Rule, Verdict, strict=False))
    assert {verdict_of[rule] for rule in found.unexpected} == UNEXPECTED
    assert {verdict_of[rule] for rule in found.broken} == BROKEN
    assert {verdict_of[rule] for rule in found.kept} == KEPT
    assert {verdict_of[rule] for rule in found.unjudged} == {Verdict.ERROR}


@pytest.mark.parametrize("verdict", Verdict)
def test_every_verdict_can_be_shown(verdict: Verdict) -> None:
    assert verdict.word
    assert verdict.meaning
    assert 0 < len(verdict.abbreviation) <= 4
    assert verdict.sign
    others = set(Verdict) - {verdict}
    assert verdict.meaning not in {other.meaning for other in others}
    assert verdict.abbreviation not in {other.abbreviation for other in others}
    assert verdict.sign not in {other.sign for other in others}


PUBLIC = (
    "schema_version incident system engine family model_class revision source trace arm regime guard_policy "
    "shape_policy backend capture device dtype rule promise verdict value limit unit reach evidence effect "
    "detail node_id torch case where expected shape chances step call exception steps inputs guards influence"
)
CASE = Case(
    "qwen3_vl",
    registered("pr43617"),
    Trace.parse("cap 4: capture 4; replay 4"),
    ArmSpec.parse("eager/drop_all/full"),
    caller="static_inputs",
)
SAID = Judgement(Rule.CLEAR, Verdict.FAIL, 3, 0, "rows", "row 1", Effect.OUTPUT, shape=FaultKind.CLEARED)


def test_the_columns_are_public_and_stay() -> None:
    assert [field.name for field in fields(Row)] == PUBLIC.split()
    row = row_of_case(CASE, SAID, "2.13.0", "5962")
    text = msgspec.json.encode(row)
    written = msgspec.json.decode(text)
    assert list(written) == PUBLIC.split()
    assert written["schema_version"] == SCHEMA_VERSION
    assert msgspec.json.decode(text, type=Row[Rule]) == row


def test_a_row_states_what_was_judged_and_how() -> None:
    row = row_of_case(CASE, SAID, "2.13.0", "5962")
    assert (row.incident, row.system, row.revision, row.case) == (
        "5962", "deepstack", "pr43617@static_inputs", CASE.id,
    )  # fmt: skip
    assert (row.engine, row.model_class, row.source, row.node_id, row.expected) == (None,) * 5
    assert (row.arm, row.guard_policy, row.backend, row.capture, row.regime) == (
        "eager/drop_all/full", "drop_all", "eager", "full", "captured",
    )  # fmt: skip
    assert (row.rule, row.verdict, row.value, row.limit, row.unit, row.effect, row.detail, row.shape) == (
        Rule.CLEAR, Verdict.FAIL, 3, 0, "rows", Effect.OUTPUT, "row 1", "cleared payload",
    )  # fmt: skip


def test_the_promise_of_a_row_follows_from_its_rule() -> None:
    promises = {
        Promise.SPECIALISATION: {Rule.OUTPUT, Rule.STRUCTURE},
        Promise.LAYOUT: {Rule.ADDRESS, Rule.PLACEMENT, Rule.GRAPHS},
        Promise.NEUTRAL_ROWS: {Rule.BOUNDARY, Rule.FRESHNESS, Rule.CLEAR},
        Promise.OWNERSHIP: {Rule.SHARDING},
        None: {Rule.CAPACITY, Rule.REJECTION, Rule.WORK, Rule.RANGES, Rule.ORDERING, Rule.MEMORY},
    }
    assert {rule: promise for promise, rules in promises.items() for rule in rules} == {
        rule: Row(revision="", rule=rule, verdict=Verdict.PASS).promise for rule in Rule
    }
    row = row_of_case(CASE, SAID, "")
    assert replace(row, rule=Rule.REJECTION).promise is None
    written = msgspec.json.decode(msgspec.json.encode(row))
    assert written.pop("promise") == "I3"
    assert msgspec.convert(written, Row[Rule]) == row  # as an earlier version wrote it


def test_a_row_of_a_source_names_its_engine_and_class() -> None:
    row = row_of_case(
        replace(CASE, buffer=source_buffer("vllm", "0.33.0", "vllm 0.33.0", "Any"), caller="engine"), SAID, ""
    )
    assert (row.engine, row.source, row.model_class, row.revision) == (
        "vllm", "vllm 0.33.0", "Any", "vllm 0.33.0",
    )  # fmt: skip


def test_a_reference_is_named_only_where_it_changes_the_verdict() -> None:
    row = row_of_case(CASE, SAID, "")
    known = row_against_expectation(row, broken=True, reference="vllm 43602")
    assert (known.verdict, known.expected, known.detail) == (Verdict.XFAIL, True, "row 1 [known: vllm 43602]")
    lost = replace(row, verdict=Verdict.ERROR)
    assert row_against_expectation(lost, broken=True, reference="x") == replace(lost, expected=True)
    assert row_against_expectation(row, broken=False) == replace(row, expected=False)
    assert row_against_expectation(row, broken=None) == row
