"""Per-layer inputs: their buffer, what is requested of it, and the engines around it, right and wrong."""

import pytest
import torch
from torch import Tensor
from typing_extensions import override

from cases.by_day import by_day
from cases.played import Played, play_judged
from cases.selftest.models.sequences import SEQUENCES, Read
from cases.selftest.models.test_revisions import reads
from cases.selftest.play.playing import observe
from cases.shallow import shallow
from deepstack_harness.contract.protocols import Profile, payload_kind, payload_width
from deepstack_harness.contract.rules import PayloadKind, Rule
from deepstack_harness.contract.verdicts import Effect, Verdict
from deepstack_harness.errors import StepUnavailable, UsageError
from deepstack_harness.models.per_layer_inputs import Gemma4Stages, PerLayerInputsBuffer, StepOfState
from deepstack_harness.models.reference import ReferenceBuffer
from deepstack_harness.play.model import Model

CPU = torch.device("cpu")
PADDED = "cap 16: set 12; forward 12; set 9; forward 16"
"""A step of 9 tokens, padded to 16, after a longer one."""


def played(subject: str, arm: str, trace: str) -> Played:
    return play_judged(shallow("gemma4"), subject, arm, trace)


def off(case: Played) -> float:
    distances = case.observation.steps[-1].distances
    assert distances is not None
    return distances.eager


@pytest.mark.parametrize(
    ("sequence", "expected"),
    [
        ("S1", [(4, 0)]),
        ("S2", [(16, 9)]),
        ("S3", [(16, 9), (16, 9)]),
        ("S5", [(9, 9)]),
        ("S6", [(16, 16)]),
        ("S8", [(4, 4), (4, 4), (8, 8)]),
        ("S9", [(9, 9)]),
        ("S10", [(4, 4)]),
    ],
)
def test_the_buffer_as_released_clears_nothing(qwen: Model, sequence: str, expected: list[Read]) -> None:
    assert reads(observe(qwen, SEQUENCES[sequence].trace, "per_layer_inputs")) == expected


def test_the_buffer_is_one_tensor_with_a_row_per_token() -> None:
    made = PerLayerInputsBuffer(16, 8, 3, dtype=torch.float32, device=CPU)
    made.set(payload := torch.randn(3, 9, 8))
    levels = made.get(9)
    assert levels is not None
    assert torch.equal(torch.stack(levels), payload)
    assert levels[1].data_ptr() - levels[0].data_ptr() == 8 * levels[0].element_size()
    with pytest.raises(RuntimeError):
        made.set(torch.ones(3, 17, 8))
    assert torch.equal(torch.stack(made.get(9) or ()), payload)
    with pytest.raises(StepUnavailable, match="PerLayerInputsBuffer has no resize"):
        made.resize(20)


def test_a_family_states_its_payload_and_others_need_not(qwen: Model) -> None:
    gemma = shallow("gemma4").family
    assert (payload_width(gemma), payload_kind(gemma)) == (32, PayloadKind.EVERY_TOKEN)
    assert gemma.hidden == 128
    assert (payload_width(qwen.family), payload_kind(qwen.family)) == (128, PayloadKind.VISUAL)


def test_rules_that_do_not_apply_are_reported_with_the_reason() -> None:
    output = played("per_layer_inputs", "eager", PADDED).judgements
    assert output[Rule.CLEAR].verdict is Verdict.SKIP
    assert output[Rule.CLEAR].detail.startswith("not asked: per-layer inputs exist for every token")
    assert output[Rule.BOUNDARY].verdict is Verdict.PASS
    assert "not asked: zeros behind N" in output[Rule.BOUNDARY].detail


def test_stale_padding_passes_with_the_effect_padding() -> None:
    output = played("per_layer_inputs", "eager", PADDED).judgements[Rule.FRESHNESS]
    assert (output.verdict, output.effect) == (Verdict.PASS, Effect.PADDING)
    assert "6 rows over 2 levels, first row 9 of level 0 holds row 9, level 0 of payload 1" in output.detail
    assert output.detail.endswith("no real row changed when padding held other values")


def test_zeroed_padding_has_no_effect() -> None:
    output = played("reference", "eager", PADDED).judgements[Rule.FRESHNESS]
    assert (output.verdict, output.effect, output.detail) == (Verdict.PASS, None, "")


def test_stale_padding_that_no_decoder_ran_over_is_not_tested() -> None:
    output = played("per_layer_inputs", "eager", "cap 16: set 12; set 9; get 16").judgements[Rule.FRESHNESS]
    assert (output.verdict, output.effect) == (Verdict.SKIP, Effect.PADDING)
    assert output.detail.endswith("no live decoder ran over it")


@pytest.mark.parametrize("subject", ["per_layer_inputs", "reference"])
@pytest.mark.parametrize("arm", by_day(["eager", "eager/drop_all"]))
def test_poisoned_padding_leaves_real_rows_as_they_were(subject: str, arm: str) -> None:
    *_, facts = played(subject, arm, PADDED).observation.steps
    assert facts.padding is not None
    assert (facts.padding.padded, facts.padding.changed) == (7, 0)


def test_a_padded_row_that_reaches_real_ones_breaks_freshness() -> None:
    case = played("per_layer_inputs@padding_sets_scale", "eager", PADDED)
    assert case.broken == {Rule.FRESHNESS}
    output = case.judgements[Rule.FRESHNESS]
    assert (output.value, output.effect, output.steps) == (9, Effect.OUTPUT, (4,))


class _LeavesPoison(ReferenceBuffer):
    @override
    def clear(self, tokens: int) -> None:
        """Keep all rows, so that the next get shows what the poisoning run left."""


def test_the_poison_is_taken_out_again() -> None:
    case = play_judged(
        shallow("gemma4"), "reference", "eager", "cap 16: set 9; forward 16; get 16", make=_LeavesPoison
    )
    rows = case.observation.steps[-1].answer
    assert rows is not None
    assert [run.payload for run in rows.rows[0]] == [1, 0]


def test_replays_read_the_rows_of_their_own_step_whatever_follows_them() -> None:
    case = played("per_layer_inputs", "eager/full", "cap 16: capture 16; set 16; replay 16; set 9; replay 16")
    assert case.broken == set()
    assert case.judgements[Rule.FRESHNESS].effect is Effect.PADDING


@pytest.mark.slow  # by day the incident `per-layer-micro-batches`
@pytest.mark.parametrize(
    ("caller", "broken"),
    [
        ("per_layer_pipeline", set()),
        ("per_layer_pipeline_raises", {Rule.OUTPUT}),
        ("per_layer_in_attribute", {Rule.OUTPUT}),
        ("micro_batches_sliced", set()),
        ("micro_batches", {Rule.OUTPUT, Rule.BOUNDARY}),
    ],
)
def test_engines_around_per_layer_inputs(caller: str, broken: set[Rule]) -> None:
    case = played(f"per_layer_inputs@{caller}", "eager/drop_all", "cap 16: profile 16; set 9; forward 9")
    assert case.broken == broken


@pytest.mark.parametrize(
    ("caller", "drops"), [("per_layer_stage_graphs", False), ("per_layer_stage_graphs_drop", True)]
)
def test_stage_graphs_keep_the_slots_that_they_have(caller: str, *, drops: bool) -> None:
    case = played(
        f"per_layer_inputs@{caller}", "eager/full", "cap 16: capture 16; set 9; forward 16; set 9; replay 16"
    )
    live = case.observation.steps[2].distances
    assert live is not None
    assert live.eager == 0
    assert (off(case) > 1) is drops
    assert case.broken == ({Rule.OUTPUT} if drops else set())


def test_an_omitted_write_leaves_the_rows_of_the_replay_before_it() -> None:
    trace = "cap 16: capture 16; set 16; replay 16; set 16 values=zeros; replay 16"
    assert played("per_layer_inputs", "eager/full", trace).broken == set()
    assert played("per_layer_inputs@omits_zero_payload", "eager/full", trace).broken == {
        Rule.OUTPUT,
        Rule.FRESHNESS,
    }


def test_a_step_of_state_reads_what_was_there_at_load() -> None:
    class Sums(torch.nn.Module):
        @override
        def forward(self, hidden: Tensor, positions: Tensor, payload: tuple[Tensor, ...]) -> Tensor:
            """Add the levels (n, h) to hidden (n, h)."""
            return hidden + sum(payload)

    step = StepOfState(Sums())
    step.state = {"per_layer_embeddings": torch.ones(4, 2, 8)}
    assert torch.equal(step(torch.zeros(3, 8), torch.zeros(3, 3), None), torch.full((3, 8), 2.0))


def test_stages_are_of_a_decoder_that_mixes(qwen: Model) -> None:
    with pytest.raises(UsageError, match=r"Qwen3VLDecoder takes no per-layer inputs: .* such as gemma4"):
        Gemma4Stages(qwen.decoder)


def test_a_profile_has_the_width_of_the_payload() -> None:
    assert shallow("gemma4").profile(16) == Profile(16, 32, 2, torch.float32, CPU)
