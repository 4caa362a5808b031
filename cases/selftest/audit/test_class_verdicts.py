"""A fault that breaks several rules is reported once, and what is known of a rule counts in both regimes."""

from dataclasses import replace

import msgspec
import pytest

from deepstack_harness.audit.class_verdicts import (
    against_known,
    by_cause,
    effects_in,
    same_without_graphs,
    sum_up_each_regime,
)
from deepstack_harness.catalogue.known import KnownFailure, KnownRules, known_rules_of
from deepstack_harness.catalogue.plans import Where, plan_check
from deepstack_harness.contract.case import PlannedCase, Regime, live_buffer
from deepstack_harness.contract.observation import Observation
from deepstack_harness.contract.oracles.judge import JudgedCase
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.verdicts import FaultKind, Judgement, Row, Verdict

R = Rule
LIVE, CAPTURED = Regime.LIVE, Regime.CAPTURED
SHORT, LONG, GRAPHS = (
    "cap 16: set 9; get 9; get 16",
    "cap 16: set 9; get 9; set 3; get 9",
    "cap 16: capture 16; set 9; replay 16; get 16",
)


def judged(trace: str, **steps: tuple[int, ...]) -> JudgedCase:
    """Return a case whose rules were seen broken in these steps."""
    (planned,) = plan_check(Where("qwen3_vl"), live_buffer("any"), [trace])
    return judged_case(planned, {R(rule): numbers for rule, numbers in steps.items()})


def judged_case(planned: PlannedCase, steps: dict[Rule, tuple[int, ...]]) -> JudgedCase:
    said = [
        Judgement(rule, Verdict.FAIL if rule in steps else Verdict.PASS, steps=steps.get(rule, ()))
        for rule in R
    ]
    return JudgedCase(planned, Observation("float32", "cpu", 3, 8, "", ()), tuple(said))


@pytest.mark.parametrize(
    ("cases", "causes"),
    [
        # R2 is never broken by itself: each time R4 came before it, or with it.
        ([judged(SHORT, R4=(2,)), judged(LONG, R4=(2,), R2=(2, 4))], {R.BOUNDARY: R.CAPACITY}),
        ([judged(SHORT, R4=(2,)), judged(LONG, R4=(2,), R2=(4,))], {R.BOUNDARY: R.CAPACITY}),
        # It came before R4, or without it.
        ([judged(SHORT, R4=(2,)), judged(LONG, R4=(4,), R2=(2,))], {}),
        ([judged(SHORT, R2=(2,)), judged(LONG, R4=(2,), R2=(4,))], {}),
        ([judged(SHORT, R2=(2,)), judged(LONG, R4=(2,))], {}),
        # Always together: the first rule is reported, but storage that moved before what graphs read from it.
        ([judged(LONG, R3=(2,), R5=(2,))], {R.CLEAR: R.FRESHNESS}),
        ([judged(GRAPHS, R3=(3,), R6=(3,))], {R.FRESHNESS: R.ADDRESS}),
        # Graphs explain nothing of live use.
        ([judged(LONG, R3=(2,)), judged(GRAPHS, R6=(3,))], {}),
    ],
)
def test_a_rule_that_is_never_broken_by_itself_is_an_effect(
    cases: list[JudgedCase], causes: dict[Rule, Rule]
) -> None:
    found = effects_in(cases)
    assert {rule: cause for (_, rule), (_, cause) in found.items()} == causes
    assert all(effect[0] is cause[0] for effect, cause in found.items())


@pytest.mark.parametrize("breaks", [True, False])
def test_a_fault_under_graphs_is_the_live_one_if_its_trace_breaks_without_graphs(breaks: bool) -> None:
    played = []

    def replay(planned: PlannedCase) -> JudgedCase:
        played.append((str(planned.case.trace), planned.case.regime, planned.case.arm.captured))
        return judged_case(planned, {R.CLEAR: (2,)} if breaks else {})

    cases = [judged(SHORT, R5=(2,)), judged(GRAPHS, R5=(3,), R6=(3,))]
    found = same_without_graphs(cases, {R.CLEAR: GRAPHS, R.ADDRESS: GRAPHS}, replay)
    assert found == ({(CAPTURED, R.CLEAR): (LIVE, R.CLEAR)} if breaks else {})
    assert played == [("cap 16: set 9; forward 16; get 16", LIVE, False)]


def not_again(_: PlannedCase) -> JudgedCase:
    raise AssertionError("it was played again")


def test_a_class_that_ended_its_process_is_not_played_again() -> None:
    cases = [judged(SHORT, R5=(2,)), judged(GRAPHS, R5=(3,))]
    cases[0] = replace(cases[0], observation=replace(cases[0].observation, ended="exited with 3"))
    assert same_without_graphs(cases, {R.CLEAR: GRAPHS}, not_again) == {}


def test_without_graphs_there_is_one_regime_and_nothing_to_compare() -> None:
    classes = sum_up_each_regime([judged(SHORT, R5=(2,))], "a.py", "Buffer", not_again)
    assert classes.by_regime.keys() == {LIVE}
    assert classes.same_live == {}
    assert [(row.rule, effects) for row, effects in classes.findings] == [(R.CLEAR, ())]


def row(
    rule: Rule, regime: Regime, verdict: Verdict = Verdict.FAIL, shape: FaultKind = FaultKind.CLEARED
) -> Row:
    return Row(revision="any", rule=rule, regime=regime, verdict=verdict, shape=shape)


def test_effects_are_listed_with_their_cause_unless_the_cause_is_known_and_they_are_new() -> None:
    rows = [
        row(R.BOUNDARY, LIVE),
        row(R.CAPACITY, LIVE),
        row(R.CAPACITY, CAPTURED),
        row(R.PLACEMENT, LIVE, Verdict.PASS),
    ]
    effects = {(LIVE, R.BOUNDARY): (LIVE, R.CAPACITY), (CAPTURED, R.CAPACITY): (LIVE, R.CAPACITY)}
    assert by_cause(rows, effects) == [(rows[1], (rows[0], rows[2]))]
    known = [rows[0], replace(rows[1], verdict=Verdict.XFAIL), rows[2]]
    assert by_cause(known, effects) == [(broken, ()) for broken in known]


ANY = KnownFailure("vllm", ">=0", ("*",), (R.CLEAR,), "unreported", shapes=(FaultKind.CLEARED,))
STATED = msgspec.structs.replace(ANY, regimes=(LIVE,))
KEPT, BROKEN = Verdict.PASS, Verdict.FAIL


@pytest.mark.parametrize(
    ("entry", "live", "captured", "wanted"),
    [
        (ANY, BROKEN, BROKEN, (Verdict.XFAIL, Verdict.XFAIL)),
        (ANY, KEPT, BROKEN, (Verdict.PASS, Verdict.XFAIL)),
        (ANY, KEPT, KEPT, (Verdict.IMPROVED, Verdict.IMPROVED)),
        (ANY, BROKEN, Verdict.SKIP, (Verdict.XFAIL, Verdict.SKIP)),
        (STATED, BROKEN, BROKEN, (Verdict.XFAIL, Verdict.FAIL)),
        (STATED, KEPT, BROKEN, (Verdict.IMPROVED, Verdict.FAIL)),
        (STATED, BROKEN, KEPT, (Verdict.XFAIL, Verdict.PASS)),
        (STATED, Verdict.SKIP, KEPT, (Verdict.MISSING, Verdict.PASS)),
    ],
)
def test_a_known_failure_is_looked_for_in_both_regimes(
    entry: KnownFailure, live: Verdict, captured: Verdict, wanted: tuple[Verdict, Verdict]
) -> None:
    rows = [row(R.CLEAR, LIVE, live), row(R.CLEAR, CAPTURED, captured)]
    assert tuple(found.verdict for found in against_known(rows, KnownRules([entry]))) == wanted


def test_a_fault_of_another_shape_is_new_in_either_regime() -> None:
    rows = [row(R.CLEAR, LIVE), row(R.CLEAR, CAPTURED, shape=FaultKind.LIVE)]
    assert [found.verdict for found in against_known(rows, KnownRules([ANY]))] == [
        Verdict.XFAIL,
        Verdict.FAIL,
    ]


def test_a_tree_without_a_version_has_known_faults_and_none_that_have_to_be_there() -> None:
    """What passes there is not mended, and what no case tested is not missing: nobody knows its release."""
    entry = msgspec.structs.replace(
        ANY, rules=(R.CLEAR, R.BOUNDARY), traces={R.CLEAR: ("short",), R.BOUNDARY: ("short",)}
    )
    known = known_rules_of("vllm", None, "AnyModel", [entry])
    rows = [
        replace(row(R.CLEAR, LIVE), trace="short"), replace(row(R.CLEAR, CAPTURED), trace="other"),
        row(R.BOUNDARY, LIVE, Verdict.PASS), row(R.BOUNDARY, CAPTURED, Verdict.SKIP), row(R.STRUCTURE, LIVE),
    ]  # fmt: skip
    found = against_known(rows, known)
    assert [item.verdict for item in found] == ["XFAIL", "FAIL", "PASS", "SKIP", "FAIL"]
    assert found[0].detail == ""
    assert found[1].detail == ""
