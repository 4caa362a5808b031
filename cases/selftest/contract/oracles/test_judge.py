"""Judging a case: the rules in their order, what users notice of a broken one, and plans of cases."""

from collections.abc import Iterator

import pytest

from cases.selftest.contract.oracles.written_observations import COMPILED, RIGHT, TRACE, forward
from deepstack_harness.contract.arm import EAGER
from deepstack_harness.contract.case import Case, PlannedCase, registered
from deepstack_harness.contract.observation import Answer, Observation, Raised, RowRange, StepFacts
from deepstack_harness.contract.oracles.judge import ORACLES, effect_of, judge_all, judge_case, judge_cases
from deepstack_harness.contract.oracles.trace_audit import Deviation, ObservedCase
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.trace import Trace
from deepstack_harness.contract.verdicts import Effect, FaultKind, Judgement, Verdict

Row = tuple[int, int]
"""First wrong row, and rows of real tokens."""


def deviation(row: Row | None = None, *, raised: bool = False) -> Deviation:
    first, real = row or (None, 0)
    exception = "ValueError" if raised else ""
    return Deviation(Rule.BOUNDARY, 1, "rows", "", FaultKind.ZEROS, None, first, real, exception)


@pytest.mark.parametrize("by_compiler", [True, False])
def test_what_the_compiler_did_wrong_is_not_judged_as_the_buffers(*, by_compiler: bool) -> None:
    raised = Raised("InductorError", "InvalidCxxCompiler: none", "decoder", "a.py:1", by_compiler=by_compiler)
    planned = PlannedCase(Case("qwen3_vl", registered("reference"), TRACE, COMPILED), None)
    judged = judge_case(planned, forward(None, raised=raised))
    of_output = next(judgement for judgement in judged.judgements if judgement.rule is Rule.OUTPUT)
    assert of_output.verdict is (Verdict.ERROR if by_compiler else Verdict.FAIL)
    assert of_output.exception == "InductorError"
    assert (
        {Rule.OUTPUT, Rule.WORK, Rule.GRAPHS} <= judged.unjudged
        if by_compiler
        else Rule.OUTPUT in judged.broken
    )
    assert {Rule.SHARDING, Rule.MEMORY}.isdisjoint(judged.unjudged)
    if by_compiler:
        said = "the compiler of torch 2.13.0 failed here: InductorError: InvalidCxxCompiler: none"
        assert of_output.detail == said
    assert Rule.STRUCTURE in judged.broken  # what was returned before is judged


@pytest.mark.parametrize(
    ("rule", "deviations", "effect"),
    [
        (Rule.OUTPUT, [], Effect.OUTPUT),
        (Rule.OUTPUT, [deviation(raised=True)], Effect.CRASH),
        (Rule.WORK, [], Effect.COST),
        (Rule.BOUNDARY, [deviation((0, 9))], Effect.OUTPUT),
        (Rule.FRESHNESS, [deviation((8, 9))], Effect.OUTPUT),
        (Rule.CLEAR, [deviation((9, 9))], Effect.PADDING),
        (Rule.CLEAR, [deviation((12, 9)), deviation((3, 4))], Effect.OUTPUT),
        (Rule.CAPACITY, [deviation((0, 9)), deviation(raised=True)], Effect.CRASH),
        (Rule.REJECTION, [deviation()], None),
        (Rule.STRUCTURE, [], None),
        (Rule.ADDRESS, [], None),
        (Rule.GRAPHS, [], None),
    ],
)
def test_the_worst_effect_follows_from_the_facts(
    rule: Rule, deviations: list[Deviation], effect: Effect | None
) -> None:
    assert effect_of(Judgement(rule, Verdict.FAIL), deviations) is effect
    assert effect_of(Judgement(rule, Verdict.XFAIL), deviations) is effect


@pytest.mark.parametrize(
    ("rule", "shape", "effect"),
    [
        (Rule.GRAPHS, FaultKind.GRAPHS, Effect.COST),
        (Rule.GRAPHS, FaultKind.BREAKS, Effect.COST),
        (Rule.GRAPHS, FaultKind.RECOMPILE_LIMIT, Effect.COST),
        (
            Rule.GRAPHS,
            FaultKind.STRIDES,
            None,
        ),  # an output that was not compiled: what it costs was not counted
        (Rule.ORDERING, FaultKind.SUBGRAPHS, Effect.COST),
        (Rule.ORDERING, FaultKind.RAISED, Effect.CRASH),
        (Rule.ORDERING, FaultKind.UNORDERED, None),
    ],
)
def test_an_effect_follows_from_the_shape_of_what_has_no_rows(
    rule: Rule, shape: FaultKind, effect: Effect | None
) -> None:
    assert effect_of(Judgement(rule, Verdict.FAIL, shape=shape)) is effect


@pytest.mark.parametrize("verdict", [Verdict.PASS, Verdict.SKIP, Verdict.ERROR])
def test_a_rule_that_is_not_broken_has_no_effect(verdict: Verdict) -> None:
    for rule in Rule:
        assert effect_of(Judgement(rule, verdict), [deviation((0, 9), raised=True)]) is None


def judged(trace: str, *facts: StepFacts) -> dict[Rule, Judgement]:
    case = Case("qwen3_vl", registered("reference"), Trace.parse(trace), EAGER)
    observation = Observation("float32", "cpu", 1, 8, "2.13.0", facts)
    return {said.rule: said for said in judge_all(ObservedCase(case, observation))}


def get(tokens: int, *ranges: RowRange) -> StepFacts:
    return StepFacts(
        f"get {tokens}", 16, answer=Answer("tensors", (ranges,), (8,), ("float32",), ("cpu",), (64,))
    )


RAISED = Raised("ValueError", "too many", "get", "buffer.py:3")


@pytest.mark.parametrize(
    ("trace", "rule", "last", "value", "effect"),
    [
        pytest.param(
            "cap 16: set 9; set 3; get 9", Rule.FRESHNESS,
            get(9, RowRange(2, 0, 0, 3), RowRange(1, 0, 3, 6)), 6, Effect.PADDING,
            id="stale rows after a shorter payload",
        ),
        pytest.param(
            "cap 16: set 9; clear 9; get 9", Rule.CLEAR, get(9, RowRange(0, 0, 0, 5), RowRange(1, 0, 5, 4)),
            4, Effect.OUTPUT, id="stale rows in a step of only text",
        ),
        pytest.param(
            "cap 16: set 9; get 12", Rule.BOUNDARY, get(12, RowRange(1, 0, 0, 8), RowRange(0, 0, 0, 4)),
            1, Effect.OUTPUT, id="a lost row of the payload",
        ),
        pytest.param(
            "cap 16: get 4", Rule.BOUNDARY, StepFacts("get 4", 16, raised=RAISED), 1, Effect.CRASH,
            id="a get that raises",
        ),
    ],
)  # fmt: skip
def test_the_effect_follows_from_the_rows(
    trace: str, rule: Rule, last: StepFacts, value: int, effect: Effect
) -> None:
    *before, _ = Trace.parse(trace)
    said = judged(trace, *(StepFacts(str(step), 16) for step in before), last)[rule]
    assert (said.verdict, said.value, said.effect) == (Verdict.FAIL, value, effect)


OBSERVED = ObservedCase(Case("qwen3_vl", registered("reference"), TRACE, COMPILED), forward(RIGHT))


def test_rules_are_judged_in_their_order_all_or_those_named() -> None:
    assert [said.rule for said in judge_all(OBSERVED)] == [oracle.rule for oracle in ORACLES]
    assert [said.rule for said in judge_all(OBSERVED, [Rule.GRAPHS, Rule.OUTPUT])] == [
        Rule.OUTPUT,
        Rule.GRAPHS,
    ]


PLAN = [
    PlannedCase(Case("qwen3_vl", registered("reference"), Trace.parse(f"cap {rows}: get 4"), EAGER), None)
    for rows in (8, 16, 32)
]


def test_each_case_of_a_plan_is_judged_before_the_next_one_is_played() -> None:
    played: list[Case] = []

    def play(case: Case) -> Observation:
        played.append(case)
        return Observation("float32", "cpu", 1, 8, "2.13.0", (get(4, RowRange(0, 0, 0, 4)),))

    cases = judge_cases(PLAN, play, (Rule.BOUNDARY,))
    first = next(cases)
    assert played == [PLAN[0].case]
    assert [(judgement.rule, judgement.verdict) for judgement in first.judgements] == [
        (Rule.BOUNDARY, Verdict.PASS)
    ]
    assert [judged.planned for judged in cases] == PLAN[1:]


def test_the_rest_of_a_plan_that_is_given_up_is_not_played() -> None:
    reasons: Iterator[str] = iter(["", "three workers ended", "three workers ended"])
    seen = iter([Observation("float32", "cpu", 1, 8, "2.13.0", (get(4, RowRange(0, 0, 0, 4)),))])
    cases = list(judge_cases(PLAN, lambda _: next(seen), given_up=lambda: next(reasons)))
    assert [bool(judged.unjudged) for judged in cases] == [False, True, True]
    assert {said.detail for said in cases[1].judgements} == {"three workers ended"}
