"""Callers: what each of them does with the buffer and the decoder, seen on the reference buffer."""

import pytest
import torch

from deepstack_harness.catalogue.buffers import buffer_named
from deepstack_harness.catalogue.registry import CALLERS
from deepstack_harness.compile.torch_compat.modes import fake_world
from deepstack_harness.contract.arm import EAGER, ArmSpec
from deepstack_harness.contract.case import Case, registered
from deepstack_harness.contract.observation import Observation, RowRange
from deepstack_harness.contract.trace import Trace
from deepstack_harness.errors import UsageError
from deepstack_harness.models.engine import layers_of
from deepstack_harness.models.engine_faults import PayloadChunkedUnpadded
from deepstack_harness.models.reference import ReferenceBuffer
from deepstack_harness.play.model import Model
from deepstack_harness.play.observe import play

CPU = torch.device("cpu")
DROP_ALL = ArmSpec.parse("eager/drop_all")


def observe(model: Model, trace: str, caller: str, arm: ArmSpec = EAGER) -> Observation:
    case = Case("qwen3_vl", registered("reference"), Trace.parse(trace), arm, caller=caller)
    return play(case, model, ReferenceBuffer)


def rows_read(observation: Observation, step: int = -1) -> tuple[RowRange, ...]:
    answer = observation.steps[step].answer
    assert answer is not None
    return answer.rows[0]


def to_eager(observation: Observation) -> float:
    distances = observation.steps[-1].distances
    assert distances is not None
    assert distances.effect > 1, "the payload does not show in the output"
    return distances.eager


def test_an_unknown_caller_is_quoted(qwen: Model) -> None:
    with pytest.raises(UsageError, match="unknown caller 'clumsy'; nearest are "):
        observe(qwen, "cap 16: get 1", "clumsy")


def test_each_half_of_a_step_reads_from_row_0_on(qwen: Model) -> None:
    seen = observe(qwen, "cap 16: set 7; forward 7", "micro_batches")
    assert rows_read(seen) == (RowRange(1, 0, 0, 4), RowRange(0, 0, 0, 3))
    assert to_eager(seen) > 1


def test_halves_of_a_payload_that_was_cut_follow_each_other(qwen: Model) -> None:
    seen = observe(qwen, "cap 16: set 7; forward 7", "micro_batches_sliced")
    assert rows_read(seen) == (RowRange(1, 0, 0, 7),)
    assert to_eager(seen) == 0


def test_micro_batches_are_sequences_of_their_own(qwen: Model) -> None:
    whole = observe(qwen, "cap 16: set 8; forward 8", "engine").steps[-1].distances
    halves = observe(qwen, "cap 16: set 8; forward 8", "micro_batches_sliced").steps[-1].distances
    assert whole is not None
    assert halves is not None
    assert whole.effect != halves.effect


def test_a_payload_that_is_not_set_is_not_read(qwen: Model) -> None:
    seen = observe(qwen, "cap 16: set 9; forward 9", "skips_set")
    assert rows_read(seen) == (RowRange(0, 0, 0, 9),)
    assert to_eager(seen) > 1


def test_an_overwritten_payload_is_read_and_has_no_effect(qwen: Model) -> None:
    seen = observe(qwen, "cap 16: set 9; forward 9", "overwrites_payload")
    assert rows_read(seen) == (RowRange(1, 0, 0, 9),)
    distances = seen.steps[-1].distances
    assert distances is not None
    assert distances.no_deepstack == 0
    assert distances.eager == distances.effect > 1


def test_one_row_is_requested(qwen: Model) -> None:
    seen = observe(qwen, "cap 16: set 9; forward 9", "asks_by_batch_size")
    assert rows_read(seen) == (RowRange(1, 0, 0, 1),)


def test_one_span_takes_text_for_features(qwen: Model) -> None:
    seen = observe(qwen, "cap 16: set 9 spans=1-3+6-9; forward 9", "takes_one_span")
    # Row 6 gets the third row from the first visual one on, which is text.
    assert rows_read(seen) == (RowRange(0, 0, 0, 1), RowRange(1, 0, 1, 2), RowRange(0, 0, 0, 6))
    assert to_eager(seen) > 1


def test_one_span_is_right_where_there_is_one(qwen: Model) -> None:
    seen = observe(qwen, "cap 16: set 9 spans=1-5; forward 9", "takes_one_span")
    assert rows_read(seen) == (RowRange(0, 0, 0, 1), RowRange(1, 0, 1, 4), RowRange(0, 0, 0, 4))
    assert to_eager(seen) == 0


def test_a_payload_that_never_ends_is_read_again(qwen: Model) -> None:
    seen = observe(qwen, "cap 16: set 9; forward 9; forward 9", "never_clears")
    assert rows_read(seen) == (RowRange(1, 0, 0, 9),)
    ended = observe(qwen, "cap 16: set 9; forward 9; forward 9", "engine")
    assert rows_read(ended) == (RowRange(0, 0, 0, 9),)


def test_a_fixed_range_is_right_for_three_levels_and_loses_the_fourth(qwen: Model) -> None:
    trace = "cap 16: set 9; forward 9"
    assert to_eager(observe(qwen, trace, "fixed_level_range")) == 0
    assert to_eager(observe(Model.build("granite4_vision"), trace, "fixed_level_range")) > 1


@pytest.mark.parametrize("caller", ["packs_levels", "splits_levels", "masked_scatter", "boolean_index"])
@pytest.mark.parametrize("spans", ["", " spans=1-3+6-9"])
def test_another_layout_of_the_payload_is_the_same_sum(qwen: Model, caller: str, spans: str) -> None:
    assert to_eager(observe(qwen, f"cap 16: set 9{spans}; forward 12", caller)) == 0


def test_a_splitter_has_nothing_to_loop_over_where_the_payload_is_none(qwen: Model) -> None:
    case = Case(
        "qwen3_vl",
        registered("none_when_empty"),
        Trace.parse("cap 16: set 9; forward 9; forward 4"),
        EAGER,
        caller="splits_levels",
    )
    *_, visual, text = play(case, qwen, buffer_named("none_when_empty")).steps
    assert (visual.raised, text.raised and text.raised.type) == (None, "TypeError")


@pytest.mark.parametrize(("arm", "right"), [(EAGER, True), (DROP_ALL, False)], ids=["eager", "drop_all"])
@pytest.mark.slow  # 2 s; incident payload-on-model by day
def test_a_payload_on_the_model_is_lost_by_a_graph_that_was_compiled_without(
    qwen: Model, arm: ArmSpec, right: bool
) -> None:
    seen = observe(qwen, "cap 16: profile 16; set 9; forward 9", "payload_on_model", arm)
    assert rows_read(seen) == (RowRange(1, 0, 0, 9),)
    assert (to_eager(seen) < 1e-4) == right


@pytest.mark.parametrize(("tokens", "parts"), [(10, [3, 3, 3, 1]), (12, [3, 3, 3, 3]), (5, [2, 2, 1, 0])])
def test_chunks_of_the_tokens_set(qwen: Model, tokens: int, parts: list[int]) -> None:
    seen = []
    for rank in range(4):
        with fake_world(rank, 4):
            caller = PayloadChunkedUnpadded(4)
        caller.set(ReferenceBuffer(12, 2, 1, dtype=torch.float32, device=CPU), torch.ones(1, tokens, 2))
        seen += [len(rows) for rows in caller.payload_rows((torch.ones(12, 2),), slice(0, 3))]
    assert seen == parts


def test_every_caller_is_described_and_faulty_ones_are_marked() -> None:
    correct = {name for name, entry in CALLERS.items() if not entry.summary.startswith("fault:")}
    assert {"engine", "micro_batches_sliced", "per_layer_pipeline"} <= correct


def test_a_decoder_without_a_list_of_layers_is_refused() -> None:
    decoder = torch.nn.Linear(2, 2)
    with pytest.raises(UsageError, match=r"^Linear has no torch\.nn\.ModuleList 'layers'"):
        layers_of(decoder)
    decoder.layers = torch.nn.ModuleList([torch.nn.Identity()])
    assert layers_of(decoder) is decoder.layers
