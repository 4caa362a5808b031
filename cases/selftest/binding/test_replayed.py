"""FULL graphs, emulated: what Python did at capture is all that a replay does."""

import pytest
import torch

from cases.selftest.play.playing import case_of
from deepstack_harness.binding.replayed import ReplayedBuffer, ReplayedClass
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.verdicts import Verdict
from deepstack_harness.mutants.by_name import buffer_named
from deepstack_harness.oracles.all_rules import judge_all
from deepstack_harness.oracles.observed_case import ObservedCase
from deepstack_harness.play.model import Model
from deepstack_harness.play.observe import play
from deepstack_harness.torch_compat.recording import OpRecorder

CPU = torch.device("cpu")


def broken(model: Model, trace: str, name: str) -> dict[Rule, float | None]:
    case = case_of(trace, name)
    said = judge_all(ObservedCase(case, play(case, model, ReplayedClass(buffer_named(name)))))
    return {one.rule: one.value for one in said if one.verdict is Verdict.FAIL}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # The counter is 0 at capture, so the clear records nothing: the payload stays.
        ("pr43617", {Rule.R5: 36}),
        ("pr49397", {Rule.R5: 36}),
        # Without a counter the zeroing is recorded.
        ("original", {}),
        ("reference", {}),
    ],
)
def test_a_text_only_replay_after_a_visual_one(qwen: Model, name: str, expected: dict[Rule, float]) -> None:
    assert broken(qwen, "cap 16: profile 16; set 12; forward 16; forward 16", name) == expected


def test_none_at_capture_is_none_for_ever(qwen: Model) -> None:
    assert Rule.R1 in broken(qwen, "cap 16: profile 16; set 12; forward 16", "pr40932")


def test_a_replay_reads_the_storage_it_was_captured_with() -> None:
    buffer = ReplayedBuffer(buffer_named("pr43617")(4, 8, 1, dtype=torch.float32, device=CPU))
    buffer.get(4)
    buffer.set(torch.ones(1, 4, 8))
    assert _first(buffer, 4) == 1
    buffer.set(torch.full((1, 9, 8), 2.0))  # grows: new storage, that the graph has never seen
    assert _first(buffer, 4) == 1


def test_a_resize_runs_outside_of_the_graphs() -> None:
    buffer = ReplayedBuffer(buffer_named("pr43617")(4, 8, 1, dtype=torch.float32, device=CPU))
    for tokens in (9, 15):
        buffer.resize(tokens)
        assert buffer.capacity >= tokens


def _first(buffer: ReplayedBuffer, tokens: int) -> float:
    answer = buffer.get(tokens)
    assert answer is not None
    return answer[0][0, 0].item()


def test_each_count_is_captured_on_its_own() -> None:
    buffer = ReplayedBuffer(buffer_named("original")(8, 8, 1, dtype=torch.float32, device=CPU))
    buffer.set(torch.ones(1, 8, 8))
    buffer.clear(4)
    buffer.set(torch.ones(1, 8, 8))
    buffer.clear(4)
    answer = buffer.get(8)
    assert answer is not None
    assert answer[0][:, 0].tolist() == [0, 0, 0, 0, 1, 1, 1, 1]


def test_a_replay_repeats_operations_on_their_own_tensors() -> None:
    source, written = torch.ones(3), torch.zeros(3)
    with OpRecorder() as recorder:
        doubled = source[:2] * 2  # a view, and a result
        written[:2].copy_(doubled)  # a write through a view
    source.fill_(5)
    recorder.replay()
    assert doubled.tolist() == [10, 10]
    assert written.tolist() == [10, 10, 0]
