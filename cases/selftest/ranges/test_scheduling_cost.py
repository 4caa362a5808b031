"""What a scheduler asks of placeholder ranges, and that its cost is measured and not made up."""

from collections.abc import Mapping

import pytest
import torch

from deepstack_harness.contract.facts.ranges import BuildCost, CostObservation, StepCost
from deepstack_harness.errors import NotMeasured
from deepstack_harness.ranges.faults import WrapsListRange
from deepstack_harness.ranges.placeholder_range import ListRange, MakeRange, TensorRange
from deepstack_harness.ranges.scheduling_cost import (
    build_costs,
    held_bytes,
    observe_costs,
    place,
    schedule_step,
    step_costs,
)
from deepstack_harness.ranges.workloads import Feature, Served, decoding, geo3k, video
from deepstack_harness.workload.requests import Request
from deepstack_harness.workload.schedule import Chunk, ScheduledStep

BOTH: Mapping[str, MakeRange] = {"tensor": TensorRange, "list": ListRange}
REQUESTS = [Request(f"row{number}", ((320, 320),) * (number % 3), 20, 3) for number in range(9)]
WORKLOADS = {"geo3k": lambda: geo3k(REQUESTS), "video": lambda: video(3, 2, 4)}


@pytest.mark.parametrize("name", WORKLOADS)
def test_features_lie_in_their_prompts_and_follow_each_other(name: str) -> None:
    served = WORKLOADS[name]()
    chunks = [chunk for step in served.steps for chunk in step.chunks]
    for request, features in served.features.items():
        behind = 0
        for feature in features:
            assert feature.offset == behind
            assert set(feature.mask) == {"0", "1"}
            behind += len(feature.mask)
        assert 0 < behind < sum(chunk.tokens for chunk in chunks if chunk.request == request)


def test_every_visual_token_of_the_workload_gets_an_embedding() -> None:
    served = geo3k(REQUESTS)
    for request in REQUESTS:
        marks = "".join(feature.mask for feature in served.features.get(request.id, ()))
        assert marks.count("1") == request.visual_tokens
        assert marks.count("0") == 2 * len(request.images)
    assert served.features["tail"] == served.features["row1"]


def test_the_workload_that_comes_along_is_served_to_its_end() -> None:
    served = geo3k()
    assert len(served.features) == 97  # 96 rows with one image each, and the first again at the end
    assert max(len(step.chunks) for step in served.steps) == 32
    done = {chunk.request for step in served.steps for chunk in step.chunks}
    assert done >= served.features.keys()


def test_a_decode_step_lies_behind_all_features() -> None:
    served = decoding(3, 2, steps=5)
    assert len(served.steps) == 5
    for step in served.steps:
        assert [(chunk.request, chunk.tokens) for chunk in step.chunks] == [
            (f"decode{n}", 1) for n in range(3)
        ]
        assert all(chunk.start >= 2 * 77 for chunk in step.chunks)


def test_a_video_has_a_time_stamp_before_each_frame() -> None:
    (feature,) = video(1, 1, 3).features["video0"]
    assert feature.mask == ("0" * 6 + "1" * 80) * 3


@pytest.mark.parametrize("make", BOTH.values(), ids=BOTH)
def test_a_step_asks_as_the_scheduler_does(make: MakeRange) -> None:
    served = Served(
        "one", {"a": (Feature(2, "0110"), Feature(6, "11"), Feature(8, "1"), Feature(9, "1"))}, ()
    )
    placed = place(make, served)
    # Tokens 4..7: the first two are reached, the third begins behind the step and ends the search.
    asked = schedule_step(ScheduledStep((Chunk("a", 4, 4, 0), Chunk("text", 0, 5, 0))), placed)
    assert asked == ((2 + 1) + (2 + 2) + 1, 5)
    # Token 8: all before are done.
    assert schedule_step(ScheduledStep((Chunk("a", 8, 1, 0),)), placed) == (2 + 2 + (1 + 1) + 1, 5)


def test_an_order_of_answers_that_differs_is_not_compared() -> None:
    with pytest.raises(NotMeasured, match=r"workload video: \(embeddings, questions\) were"):
        step_costs({"list": ListRange, "other": Lopsided}, video(2, 1, 2), 1)


class Lopsided(ListRange):
    """Counts one too many."""

    def get_num_embeds(self) -> int:
        return super().get_num_embeds() + 1


def test_nothing_asked_is_nothing_measured() -> None:
    with pytest.raises(NotMeasured, match=r"workload empty: .* were \[\(0, 0\)\]"):
        step_costs(BOTH, Served("empty", {}, decoding(1, 1).steps), 1)


def test_a_fault_that_the_workload_does_not_reach_costs_no_comparison() -> None:
    assert step_costs({"list": ListRange, "wraps": WrapsListRange}, decoding(1, 1), 1)


def test_calls_into_torch_grow_with_requests_and_features_and_the_list_makes_none() -> None:
    calls = {size: {cost.variant: cost.torch_calls for cost in step_costs(BOTH, decoding(*size), 1)}
             for size in ((1, 1), (4, 1), (4, 5))}  # fmt: skip
    assert {found["list"] for found in calls.values()} == {0}
    one = calls[1, 1]["tensor"]
    assert one >= 2  # an index, and a conversion
    assert (calls[4, 1]["tensor"], calls[4, 5]["tensor"]) == (4 * one, 20 * one)


def test_calls_into_torch_are_those_of_one_step() -> None:
    few, many = (step_costs({"tensor": TensorRange}, decoding(1, 1, steps), 1) for steps in (1, 9))
    assert few[0].torch_calls == many[0].torch_calls > 0


def test_a_step_cost_states_what_was_asked() -> None:
    (cost,) = step_costs({"list": ListRange}, decoding(4, 5, steps=7), 1)
    assert (cost.variant, cost.workload) == ("list", "decoding 4 x 5")
    assert (cost.requests, cost.features, cost.steps, cost.questions) == (4, 5, 7, 4 * 5 * 7)
    assert cost.microseconds > 0


def test_the_list_holds_more_memory_than_the_tensor() -> None:
    tensor, listed = build_costs(BOTH, 1024, 1)
    assert (tensor.variant, listed.variant, tensor.length) == ("tensor", "list", 1024)
    assert listed.bytes > 2 * tensor.bytes > 2 * 8 * 1024


def test_what_is_held_is_counted() -> None:
    assert held_bytes(torch.zeros(100, dtype=torch.int64)) >= 800
    # 1000 places of 8 bytes; small numbers are CPython's own, others have 28 bytes each.
    shared, own = held_bytes([7] * 1000), held_bytes(list(range(1000, 2000)))
    assert shared >= 8000
    assert own - shared == 28 * 1000
    with pytest.raises(NotMeasured, match="kept as dict: its size is not known"):
        held_bytes({})


def cost(variant: str, workload: str, microseconds: float) -> StepCost:
    return StepCost(variant, workload, 1, 1, 1, 1, microseconds, 0)


def test_a_ratio_is_of_one_workload() -> None:
    steps = (cost("a", "x", 6), cost("b", "x", 2), cost("a", "y", 100), cost("b", "y", 1))
    seen = CostObservation(steps, (), (BuildCost("a", 1, 1.0, 8),), "2.13")
    assert (seen.ratio("x", "a", "b"), seen.ratio("y", "a", "b")) == (3, 100)
    assert CostObservation.from_json(seen.to_json()) == seen


def test_everything_is_measured_for_every_variant() -> None:
    seen = observe_costs(BOTH, repetitions=1)
    assert {(one.variant, one.workload) for one in seen.steps} == {
        (variant, workload) for variant in BOTH for workload in ("geo3k", "video")
    }
    assert {(one.requests, one.features) for one in seen.growth} == {(1, 1), (8, 1), (64, 1), (8, 8), (8, 32)}
    assert {one.length for one in seen.builds} == {64, 1024, 16384}
