"""Arms that play settings of engines: a fault of one setting shows there, and right buffers pass there."""

import pytest

from cases.by_day import by_day
from deepstack_harness.catalogue.buffers import read_correct
from deepstack_harness.catalogue.plans import CAPTURE_TRACES, graph_budget
from deepstack_harness.catalogue.registry import MODELS
from deepstack_harness.contract.arm import ArmSpec
from deepstack_harness.contract.case import Case, PlannedCase, registered
from deepstack_harness.contract.oracles.judge import JudgedCase, judge_case
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.trace import Trace
from deepstack_harness.play.play_case import play_case

DECODES = ("eager/full_decode_only", "eager/full_and_piecewise")
PROMPT_THEN_DECODE = "cap 16: capture 16; capture 4; set 9; replay 16; replay 4"
IMAGE_THEN_TEXT = "cap 16: capture 16; set 16; replay 16; replay 16"
RIGHT = sorted(
    name for name, buffer in read_correct(MODELS / "correct.py").items() if buffer.regimes == "both"
)
SERVED = "cap 16: profile 16; set 16; forward 16; forward 4"


def judged(buffer: str, arm: str, trace: str, family: str = "qwen3_vl") -> JudgedCase:
    spec, steps = ArmSpec.parse(arm), Trace.parse(trace)
    case = Case(
        family=family, buffer=registered(buffer), trace=steps, arm=spec, dtype="float32", device="cpu",
        seed=0, graph_budget=graph_budget(steps, spec),
    )  # fmt: skip
    return judge_case(PlannedCase(case, None), play_case(case))


@pytest.mark.parametrize("arm", DECODES)
def test_rows_that_only_a_decoding_graph_reads_again_are_found(arm: str) -> None:
    assert judged("leaves_rows_to_the_next_get", arm, PROMPT_THEN_DECODE).broken == {Rule.OUTPUT, Rule.CLEAR}


@pytest.mark.parametrize("arm", ["eager/full", "eager/piecewise"])
def test_the_same_steps_in_one_kind_of_graph_do_not_show_it(arm: str) -> None:
    assert judged("leaves_rows_to_the_next_get", arm, PROMPT_THEN_DECODE).broken == frozenset()


@pytest.mark.parametrize("arm", DECODES)
def test_a_counter_that_full_graphs_do_not_read_is_right_where_prompts_run_without_them(arm: str) -> None:
    """The faulty revision of the incident about replays: text after an image is right in the default mode."""
    assert judged("pr43617", arm, IMAGE_THEN_TEXT).broken == frozenset()
    assert judged("pr43617", "eager/full", IMAGE_THEN_TEXT).broken == {Rule.OUTPUT, Rule.CLEAR}


@pytest.mark.parametrize("arm", DECODES)
@pytest.mark.parametrize("family", ["qwen3_vl", "granite4_vision", "gemma4"])
def test_the_reference_is_right_in_every_family(family: str, arm: str) -> None:
    for trace in (PROMPT_THEN_DECODE, "cap 16: capture 16; set 16; replay 16; set 4; replay 16; forward 16"):
        assert judged("reference", arm, trace, family).broken == frozenset()


@pytest.mark.parametrize("arm", by_day(DECODES))
def test_right_buffers_are_right(arm: str) -> None:
    """0.1 s of the processor for a case; 0.5 s to make the model."""
    traces = [PROMPT_THEN_DECODE, CAPTURE_TRACES[2]]
    broken = {
        (name, trace): cause
        for name in RIGHT
        for trace in traces
        if (cause := judged(name, arm, trace).broken)
    }
    assert len(RIGHT) > 5
    assert broken == {}


def test_a_payload_of_every_token_is_decoded_in_full_graphs() -> None:
    """Batches that only decode have one too, so that a set is no sign of a prompt."""
    steps = judged("reference", "eager/full_decode_only", IMAGE_THEN_TEXT, "gemma4").observation.steps
    assert [facts.graph_use is not None for facts in steps if facts.step.startswith("replay")] == [True, True]


@pytest.mark.slow  # 14 s; test_reload.py by day
def test_what_an_artifact_was_made_without_is_missing_in_the_process_that_loads_it() -> None:
    """A step is compiled, saved, loaded and served: 4 s of the processor for each of two cases."""
    assert (
        Rule.OUTPUT
        in judged("pr40145", "eager/drop_all/reloaded", SERVED.replace("16; forward 4", "16")).broken
    )
    assert judged("reference", "eager/drop_all/reloaded", SERVED).broken == frozenset()


@pytest.mark.slow  # 4 s
def test_a_case_whose_artifact_served_nothing_is_not_judged() -> None:
    case = judged("reference", "eager/drop_all/reloaded", "cap 16: profile 16")
    assert case.unjudged == {Rule.OUTPUT, Rule.GRAPHS}
    assert "no step was served by the reloaded artifact" in str(case.observation.error)


@pytest.mark.slow  # 8 s: guards that were saved refuse, and torch never recompiles after that
def test_an_artifact_with_guards_refuses_what_torch_would_recompile_for() -> None:
    trace = "cap 16: profile 16; set 16; forward 16"
    assert Rule.OUTPUT not in judged("pr40145", "eager/stock", trace).broken
    assert Rule.OUTPUT in judged("pr40145", "eager/stock/reloaded", trace).broken


@pytest.mark.slow  # 6 s
def test_the_reference_is_right_with_sizes_that_are_not_specialised() -> None:
    for trace in ("cap 16: profile 1; set 9; forward 16; forward 1; forward 0; forward 2",):
        case = judged("reference", "eager/drop_all/backed_size_oblivious", trace)
        assert case.broken == frozenset()
        assert case.observation.graphs is not None
        assert case.observation.graphs.graphs == 1


@pytest.mark.slow  # 3 s
def test_the_guard_that_is_evaluated_is_named() -> None:
    """3 s of the processor: one size is compiled, and one token is refused."""
    case = judged("reference", "eager/shape_env_only", "cap 16: profile 16; forward 1")
    (step,) = [facts for facts in case.observation.steps if facts.raised]
    assert step.raised is not None
    assert step.raised.message.startswith("guard evaluated and failed: 2 <= L[")
