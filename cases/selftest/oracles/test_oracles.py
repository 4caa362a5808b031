"""The oracles that judge figures, on observations written down by hand: no torch takes part."""

from dataclasses import replace

import pytest

from cases.selftest.oracles.written_observations import (
    COMPILED,
    ONE_GRAPH,
    RIGHT,
    TRACE,
    answer,
    forward,
    observed,
)
from deepstack_harness.contract.arm_spec import EAGER, ArmSpec
from deepstack_harness.contract.buffer_ref import registered
from deepstack_harness.contract.case import Case
from deepstack_harness.contract.observation import NOT_FINITE, GraphUse, Observation, Raised, StepFacts
from deepstack_harness.contract.trace import Trace
from deepstack_harness.contract.verdicts import Judgement, Verdict
from deepstack_harness.oracles import address, graphs, output, placement
from deepstack_harness.oracles.observed_case import ObservedCase


def output_of(observation: Observation, arm: ArmSpec = COMPILED) -> Judgement:
    return output.judge(ObservedCase(Case("qwen3_vl", registered("reference"), TRACE, arm), observation))


def test_equal_to_eager_passes() -> None:
    assert output_of(forward(RIGHT)).verdict is Verdict.PASS


@pytest.mark.parametrize(
    ("eager", "rounding", "verdict"),
    [
        (1e-5, 0, Verdict.PASS),
        (1.1e-5, 0, Verdict.FAIL),
        (5e-3, 2e-3, Verdict.PASS),
        (7e-3, 2e-3, Verdict.FAIL),
        (NOT_FINITE, 1e-6, Verdict.FAIL),
    ],
)
def test_the_tolerance_is_derived_from_the_rounding_of_eager(
    eager: float, rounding: float, verdict: Verdict
) -> None:
    assert output_of(forward(replace(RIGHT, eager=eager, rounding=rounding))).verdict is verdict


def test_a_payload_that_hardly_shows_is_not_judged() -> None:
    said = output_of(forward(replace(RIGHT, effect=5e-5)))
    assert said.verdict is Verdict.ERROR
    assert "too little to judge by" in said.detail


def test_a_payload_that_was_never_read_is_no_pass() -> None:
    refused = Raised("ValueError", "no", "get", "buffer.py:3")
    said = output_of(forward(None, answer=None, raised=refused))
    assert said.verdict is Verdict.SKIP
    assert "'forward 16': get raised ValueError before the decoder ran" in said.detail


def test_a_decoder_that_raises_fails() -> None:
    crashed = Raised("TypeError", "'NoneType' is not subscriptable", "decoder", "model.py:3")
    said = output_of(forward(None, raised=crashed))
    assert said.verdict is Verdict.FAIL
    assert "step 3 'forward 16' raised TypeError" in said.detail


def test_what_was_not_measured_is_an_error() -> None:
    said = output_of(observed(*forward(RIGHT).steps, error="no graph was built"))
    assert (said.verdict, said.detail) == (Verdict.ERROR, "no graph was built")


@pytest.mark.parametrize(
    ("arm", "verdict"),
    [
        ("eager", Verdict.SKIP),
        ("no-deepstack", Verdict.SKIP),
        ("eager/tp2", Verdict.SKIP),
        ("eager/full", Verdict.FAIL),
        ("eager/breakable", Verdict.FAIL),
        ("inductor/drop_all", Verdict.FAIL),
    ],
)
def test_what_departs_from_plain_eager_is_judged_against_it(arm: str, verdict: Verdict) -> None:
    assert output_of(forward(replace(RIGHT, eager=1)), ArmSpec.parse(arm)).verdict is verdict


@pytest.mark.parametrize(
    ("dtype", "arm", "limit"),
    [
        ("bfloat16", "eager/drop_all", 0),
        ("float16", "aot_eager/stock", 0),
        ("float16", "eager/full", 0),
        ("bfloat16", "inductor/drop_all", 0.125),
        ("bfloat16", "inductor/drop_all/emulate_casts", 0.125),
        ("float16", "inductor/drop_all", 2**-6),
        ("bfloat16", "aot_eager/drop_all/tp2", 0.125),
        ("float32", "eager/drop_all", 1e-5),
        ("float64", "eager/drop_all", 1e-12),
    ],
)
def test_what_rounds_as_eager_is_held_to_it_in_half_precision(dtype: str, arm: str, limit: float) -> None:
    case = Case("qwen3_vl", registered("reference"), TRACE, ArmSpec.parse(arm), dtype=dtype)
    for eager, verdict in ((limit, Verdict.PASS), (limit * 1.1 + 1e-15, Verdict.FAIL)):
        said = output.judge(ObservedCase(case, forward(replace(RIGHT, eager=eager, rounding=0))))
        assert (said.verdict, said.limit) == (verdict, limit)


@pytest.mark.parametrize(
    ("dtype", "verdict"),
    [
        ("bfloat16", Verdict.SKIP),
        ("float16", Verdict.SKIP),
        ("float32", Verdict.FAIL),
        ("float64", Verdict.FAIL),
    ],
)
def test_where_rounding_chooses_experts_half_precision_is_not_judged(dtype: str, verdict: Verdict) -> None:
    case = Case("qwen3_omni_moe_thinker", registered("reference"), TRACE, COMPILED, dtype=dtype)
    said = output.judge(ObservedCase(case, replace(forward(replace(RIGHT, eager=1)), routed=True)))
    assert said.verdict is verdict
    assert verdict is Verdict.FAIL or "another expert" in said.detail


def test_of_several_steps_the_one_furthest_above_its_tolerance_is_told() -> None:
    wide = replace(RIGHT, eager=0.2, rounding=0.1, effect=4)
    steps = forward(replace(RIGHT, eager=0.1)).steps
    said = output_of(observed(replace(steps[0], distances=wide), *steps[1:]))
    assert (said.verdict, said.value, said.limit) == (Verdict.FAIL, 0.1, 1e-5)


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({}, Verdict.PASS),
        ({"graphs": 2}, Verdict.FAIL),
        ({"breaks": 1}, Verdict.FAIL),
        ({"limit_hit": True}, Verdict.FAIL),
    ],
)
def test_graphs_above_the_budget(changes: dict[str, object], verdict: Verdict) -> None:
    facts = replace(ONE_GRAPH, **changes)  # type: ignore[arg-type]
    case = Case("qwen3_vl", registered("reference"), TRACE, COMPILED)
    assert graphs.judge(ObservedCase(case, replace(forward(RIGHT), graphs=facts))).verdict is verdict


def test_no_budget_makes_room_for_the_recompile_limit() -> None:
    facts = replace(ONE_GRAPH, graphs=8, recompiles=9, limit_hit=True, reasons=("0/0: size mismatch",))
    refused = Raised("FailOnRecompileLimitHit", "hard failure", "decoder", "compile.py:3")
    observation = replace(forward(RIGHT, raised=refused), graphs=facts)
    case = Case("qwen3_vl", registered("reference"), TRACE, COMPILED, graph_budget=10)
    said = graphs.judge(ObservedCase(case, observation))
    assert (said.verdict, said.value, said.limit) == (Verdict.FAIL, 11, 10)
    assert "the recompile limit was reached" in said.detail
    # One fault breaks one rule: that exception is of our own making.
    assert output.judge(ObservedCase(case, observation)).verdict is Verdict.PASS


def test_a_decoder_that_never_compiled_was_reached_all_the_same() -> None:
    refused = Raised("UserError", "could not guard", "decoder", "model.py:3")
    said = graphs.judge(
        ObservedCase(
            Case("qwen3_vl", registered("reference"), TRACE, COMPILED),
            observed(*forward(None, raised=refused).steps, facts=None),
        ),
    )
    assert (said.verdict, said.detail) == (
        Verdict.SKIP,
        "nothing was compiled: step 3 'forward 16' raised UserError",
    )


def test_a_decoder_that_was_never_reached_has_no_graphs() -> None:
    refused = Raised("ValueError", "no", "get", "buffer.py:3")
    said = graphs.judge(
        ObservedCase(
            Case("qwen3_vl", registered("reference"), TRACE, COMPILED),
            observed(*forward(None, answer=None, raised=refused).steps, facts=None),
        ),
    )
    assert (said.verdict, said.detail) == (Verdict.SKIP, "the decoder was never reached")


def test_reasons_of_recompiles_are_told() -> None:
    facts = replace(ONE_GRAPH, graphs=2, recompiles=1, reasons=("0/0: payload is None",))
    said = graphs.judge(
        ObservedCase(
            Case("qwen3_vl", registered("reference"), TRACE, COMPILED), replace(forward(RIGHT), graphs=facts)
        )
    )
    assert "recompiled because 0/0: payload is None" in said.detail


@pytest.mark.parametrize(
    ("dtype", "device"), [("float32", "cuda:0"), ("bfloat16", "cpu"), ("float32", "meta")]
)
def test_rows_elsewhere_or_in_another_dtype(dtype: str, device: str) -> None:
    case = Case("qwen3_vl", registered("reference"), Trace.parse("cap 16: get 16"), EAGER)
    said = placement.judge(
        ObservedCase(case, observed(StepFacts("get 16", 16, answer=answer(dtype, device))))
    )
    assert said.verdict is Verdict.FAIL
    assert dtype in said.detail
    assert device in said.detail


CAPTURED = Trace.parse("cap 16: capture 16; replay 16; get 16; get 16")


def addresses_of(*answers: tuple[int | None, int, int], trace: Trace = CAPTURED) -> Judgement:
    """Judge R6 where the steps of a trace answer with (generation, address, rows)."""
    steps = [
        StepFacts(str(step), 16, generation, answer(address=at, tokens=rows), graph_use=GraphUse())
        for step, (generation, at, rows) in zip(trace.steps, answers, strict=True)
    ]
    arm = ArmSpec.parse("eager/full")
    return address.judge(
        ObservedCase(Case("qwen3_vl", registered("reference"), trace, arm), observed(*steps))
    )


@pytest.mark.parametrize(
    ("last", "verdict"),
    [
        ((0, 64, 16), Verdict.PASS),
        ((0, 128, 16), Verdict.FAIL),
        ((1, 128, 16), Verdict.PASS),
        ((0, 0, 0), Verdict.PASS),
        ((-1, 64, 16), Verdict.FAIL),
        ((None, 64, 16), Verdict.PASS),
    ],
)
def test_an_address_may_change_with_the_generation_only(
    last: tuple[int | None, int, int], verdict: Verdict
) -> None:
    assert addresses_of((0, 64, 16), (0, 64, 16), (0, 64, 16), last).verdict is verdict


def test_addresses_before_the_first_capture_are_nobodys_business() -> None:
    trace = Trace.parse("cap 16: get 16; capture 16; replay 16")
    assert addresses_of((0, 64, 16), (0, 128, 16), (0, 128, 16), trace=trace).verdict is Verdict.PASS


def test_in_live_use_an_address_is_not_judged() -> None:
    case = Case("qwen3_vl", registered("reference"), Trace.parse("cap 16: get 16; get 16"), EAGER)
    steps = [StepFacts("get 16", 16, 0, answer(address=at)) for at in (64, 128)]
    said = address.judge(ObservedCase(case, observed(*steps)))
    assert (said.verdict, "captured regime alone" in said.detail) == (Verdict.SKIP, True)


def test_an_observation_survives_json() -> None:
    observation = forward(replace(RIGHT, eager=NOT_FINITE))
    assert Observation.from_json(observation.to_json()) == observation


def test_graphs_that_were_not_counted_are_an_error_of_their_rule() -> None:
    case = Case("qwen3_vl", registered("reference"), TRACE, COMPILED)
    seen = replace(forward(RIGHT), error="the caches were warm")
    said = graphs.judge(ObservedCase(case, seen))
    assert (said.verdict, said.detail) == (Verdict.ERROR, "the caches were warm")
    assert graphs.judge(ObservedCase(case, forward(RIGHT))).verdict is Verdict.PASS
