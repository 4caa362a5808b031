"""Verdicts: one order, one wording, and one rule for known failures."""

from collections.abc import Collection

import pytest
from typing_extensions import override

from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.verdicts import (
    BROKEN,
    KEPT,
    OPENED,
    UNEXPECTED,
    WORST_FIRST,
    RuleVerdicts,
    Verdict,
    against_expectation,
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


def test_rules_are_told_by_what_their_verdicts_mean() -> None:
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
