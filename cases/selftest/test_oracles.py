"""The oracles that judge figures, on observations written down by hand: no torch takes part."""

from dataclasses import replace

import pytest

from harness.arm import EAGER, ArmSpec
from harness.case import (
    NOT_FINITE,
    Answer,
    Case,
    Distances,
    GraphFacts,
    Judgement,
    Observation,
    Raised,
    Run,
    StepFacts,
)
from harness.oracles import address, graphs, output, placement
from harness.oracles.diagnosis import diagnose
from harness.rules import Verdict
from harness.trace import Trace

TRACE = Trace.parse("cap 16: profile 16; set 16; forward 16")
COMPILED = ArmSpec.parse("eager/drop_all")
RIGHT = Distances(eager=0, no_deepstack=3, zero_deepstack=3, effect=3, rounding=1e-6)
QUIET = Distances(eager=0, no_deepstack=0, zero_deepstack=0, effect=0, rounding=1e-6)
ONE_GRAPH = GraphFacts(
    graphs=1, recompiles=0, breaks=0, limit_hit=False, guards=9, kept=0, payload_guards=1, payload_kept=0
)


def answer(dtype: str = "float32", device: str = "cpu", address: int = 64, tokens: int = 16) -> Answer:
    return Answer(
        "tensors", ((Run(0, 0, 0, tokens),) if tokens else (),), (8,), (dtype,), (device,), (address,)
    )


def observed(
    *steps: StepFacts, facts: GraphFacts | None = ONE_GRAPH, error: str | None = None
) -> Observation:
    return Observation("float32", "cpu", 1, 8, "2.13.0", steps, facts, error=error)


def forward(distances: Distances | None, **changes: object) -> Observation:
    last = StepFacts("forward 16", 16, answer=answer(), distances=distances)
    profile = StepFacts("profile 16", 16, answer=Answer("none"), distances=QUIET)
    return observed(profile, StepFacts("set 16", 16), replace(last, **changes))  # type: ignore[arg-type]


def output_of(observation: Observation, arm: ArmSpec = COMPILED) -> Judgement:
    return output.judge(Case("qwen3_vl", "reference", TRACE, arm), observation)


def test_equal_to_eager_passes() -> None:
    assert output_of(forward(RIGHT)).verdict is Verdict.PASS


@pytest.mark.parametrize(
    ("eager", "rounding", "verdict"),
    [
        (1e-4, 0, Verdict.PASS),
        (1.1e-4, 0, Verdict.FAIL),
        (7e-3, 2e-3, Verdict.PASS),
        (9e-3, 2e-3, Verdict.FAIL),
        (NOT_FINITE, 1e-6, Verdict.FAIL),
    ],
)
def test_the_tolerance_is_derived_from_the_rounding_of_eager(
    eager: float, rounding: float, verdict: Verdict
) -> None:
    assert output_of(forward(replace(RIGHT, eager=eager, rounding=rounding))).verdict is verdict


def test_a_payload_that_hardly_shows_is_not_judged() -> None:
    said = output_of(forward(replace(RIGHT, effect=5e-4)))
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


def test_eager_itself_is_not_judged_against_eager() -> None:
    assert output_of(forward(RIGHT), EAGER).verdict is Verdict.SKIP


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
    case = Case("qwen3_vl", "reference", TRACE, COMPILED)
    assert graphs.judge(case, replace(forward(RIGHT), graphs=facts)).verdict is verdict


def test_reasons_of_recompiles_are_told() -> None:
    facts = replace(ONE_GRAPH, graphs=2, recompiles=1, reasons=("0/0: payload is None",))
    said = graphs.judge(Case("qwen3_vl", "reference", TRACE, COMPILED), replace(forward(RIGHT), graphs=facts))
    assert "recompiled because 0/0: payload is None" in said.detail


@pytest.mark.parametrize(
    ("dtype", "device"), [("float32", "cuda:0"), ("bfloat16", "cpu"), ("float32", "meta")]
)
def test_rows_elsewhere_or_in_another_dtype(dtype: str, device: str) -> None:
    case = Case("qwen3_vl", "reference", Trace.parse("cap 16: get 16"), EAGER)
    said = placement.judge(case, observed(StepFacts("get 16", 16, answer=answer(dtype, device))))
    assert said.verdict is Verdict.FAIL
    assert dtype in said.detail
    assert device in said.detail


@pytest.mark.parametrize(
    ("generation", "tokens", "verdict"),
    [(0, 16, Verdict.FAIL), (1, 16, Verdict.PASS), (0, 0, Verdict.SKIP)],
)
def test_an_address_may_change_with_the_generation_only(
    generation: int, tokens: int, verdict: Verdict
) -> None:
    case = Case("qwen3_vl", "reference", Trace.parse("cap 16: get 16; get 16"), EAGER)
    first = StepFacts("get 16", 16, 0, answer())
    moved = StepFacts("get 16", 16, generation, answer(address=128, tokens=tokens))
    assert address.judge(case, observed(first, moved)).verdict is verdict


def test_an_observation_survives_json() -> None:
    observation = forward(replace(RIGHT, eager=NOT_FINITE))
    assert Observation.from_json(observation.to_json()) == observation


def test_nothing_wrong_nothing_to_diagnose() -> None:
    assert diagnose(Case("qwen3_vl", "reference", TRACE, COMPILED), forward(RIGHT)) is None
