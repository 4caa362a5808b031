"""What a scheduler asks of placeholder ranges, and that its cost is measured and not made up."""

from collections.abc import Mapping

import pytest

from deepstack_harness.audit.ranges import (
    Feature,
    ListRange,
    MakeRange,
    Served,
    TensorRange,
    WrapsListRange,
    geo3k,
    place,
    schedule_step,
    step_costs,
)
from deepstack_harness.catalogue.workload import Chunk, Request, ScheduledStep, schedule
from deepstack_harness.errors import NotMeasured

BOTH: Mapping[str, MakeRange] = {"tensor": TensorRange, "list": ListRange}
REQUESTS = [Request(f"row{number}", ((320, 320),) * (number % 3), 20, 3) for number in range(9)]


def decoding(requests: int, features: int, steps: int = 20) -> Served:
    """One token a step for each request, behind as many features of 77 positions each."""
    mask = f"0{'1' * 75}0"
    prompt = len(mask) * features
    asked = [Request(f"decode{number}", (), prompt, steps) for number in range(requests)]
    decodes = [
        step
        for step in schedule(asked, prompt * requests, requests)
        if all(chunk.tokens == 1 for chunk in step.chunks)
    ]
    placed = tuple(Feature(number * len(mask), mask) for number in range(features))
    return Served(f"decoding {requests} x {features}", {request.id: placed for request in asked}, decodes)


def test_features_lie_in_their_prompts_and_follow_each_other() -> None:
    served = geo3k(REQUESTS)
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
    with pytest.raises(NotMeasured, match=r"workload decoding 2 x 1: \(embeddings, questions\) were"):
        step_costs({"list": ListRange, "other": Lopsided}, decoding(2, 1), 1)


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
