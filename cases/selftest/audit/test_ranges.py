"""R12: what placeholder ranges are asked, what is judged, where a class comes from, and its cost."""

import shutil
import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases.selftest.engines.synthetic_vllm import RANGE_FILE, write_systems
from deepstack_harness.audit import ranges
from deepstack_harness.audit.ranges import (
    Feature,
    ListRange,
    MakeRange,
    ReferenceRange,
    Served,
    TensorRange,
    WrapsListRange,
    as_tensor,
    ask,
    bind_range,
    geo3k,
    kept_as,
    observe_ranges,
    place,
    range_named,
    schedule_step,
    step_costs,
)
from deepstack_harness.catalogue.registry import PLACEHOLDER_RANGES
from deepstack_harness.catalogue.workload import Chunk, Request, ScheduledStep, schedule
from deepstack_harness.contract.facts import (
    RangeAnswer,
    RangeObservation,
    RangeQuestions,
    System,
    SystemSubject,
)
from deepstack_harness.contract.oracles.neighbours import judge_ranges as judge
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.verdicts import Verdict
from deepstack_harness.engines.known import open_source
from deepstack_harness.errors import NotMeasured, UsageError

SUBJECT = SystemSubject(System.PLACEHOLDER_RANGES, "list")
MASKS = st.none() | st.text("01", max_size=200)


def observe(make: MakeRange) -> RangeObservation:
    return observe_ranges(SUBJECT, make)


@given(st.data(), MASKS, st.integers(0, 50))
def test_both_revisions_count_as_the_contract_says(
    data: st.DataObject, mask: str | None, length: int
) -> None:
    length = length if mask is None else len(mask)
    end = data.draw(st.integers(0, length))
    start = data.draw(st.integers(0, end))
    every = "1" * length if mask is None else mask
    right = every[:start].count("1"), every[:end].count("1")
    for make in (TensorRange, ListRange, ReferenceRange):
        placeholder = make(3, length, as_tensor(mask))
        assert placeholder.get_num_embeds() == every.count("1")
        assert placeholder.get_embeds_indices_in_range(start, end) == right


@given(MASKS, st.integers(-3, 205), st.integers(-3, 205))
def test_the_reference_answers_inside_and_raises_outside(mask: str | None, start: int, end: int) -> None:
    length = 200 if mask is None else len(mask)
    placeholder = ReferenceRange(0, length, as_tensor(mask))
    if 0 <= start <= end <= length:
        placeholder.get_embeds_indices_in_range(start, end)
    else:
        with pytest.raises(IndexError, match=rf"range \[{start}, {end}\) lies outside .* {length} positions"):
            placeholder.get_embeds_indices_in_range(start, end)


@pytest.mark.parametrize("name", PLACEHOLDER_RANGES)
def test_every_variant_breaks_the_rule_exactly_when_it_has_a_fault(name: str) -> None:
    judged = judge(observe(range_named(name)))
    fault = PLACEHOLDER_RANGES[name].fault
    assert judged.rule is Rule.R12
    assert judged.verdict is (Verdict.FAIL if fault else Verdict.PASS), judged
    assert ("an empty mask: get_num_embeds()" in judged.detail) == ("an empty mask" in fault)
    assert ("mask 1 (1), start 0, end 0: gives (0, 1), (0, 0) is right" in judged.detail) == (
        "end index 0" in fault
    )


def test_the_tensor_is_told_from_the_list() -> None:
    assert kept_as(TensorRange) == "tensor"
    assert kept_as(ListRange) == "list"
    assert kept_as(lambda *_: object()) == "unknown"  # type: ignore[arg-type]


def test_an_observation_goes_to_json_and_back() -> None:
    seen = observe(ListRange)
    assert RangeObservation.from_json(seen.to_json()) == seen
    assert seen.kept_as == "list"


def test_every_short_mask_is_asked_about_every_range() -> None:
    asked = {(one.mask, start, end) for one in observe(ListRange).asked for start, end, _ in one.ranges}
    every = {"".join(bits) for size in range(7) for bits in product("01", repeat=size)}
    assert len(every) == 127
    assert asked >= {
        (mask, start, end) for mask in every for end in range(len(mask) + 1) for start in range(end + 1)
    }


@pytest.mark.parametrize("length", [0, 1, 20, 21, 501])
def test_ranges_are_inside_and_those_outside_are_not(length: int) -> None:
    assert all(0 <= start <= end <= length for start, end in ranges.ranges(length))
    assert {(0, 0), (0, length), (length, length)} <= set(ranges.ranges(length))
    outside = ranges.outside(length) if length else []
    assert not any(0 <= start <= end <= length for start, end in outside)


def outside(make: MakeRange, mask: str | None) -> list[str]:
    """For each question that no caller may ask: the answer, or the kind of exception."""
    (seen,) = (one for one in observe(make).outside if one.mask == mask)
    return [str(answer).split(":")[0] for _, _, answer in seen.ranges]


def test_what_is_answered_outside_is_stated_and_not_judged() -> None:
    assert outside(ReferenceRange, "0110") == ["IndexError"] * 5
    assert outside(ReferenceRange, None) == ["IndexError"] * 5
    # vLLM's own answers where it should not: a negative index is 0, the wrong way round is not noticed.
    assert outside(ListRange, "0110") == ["(0, 2)", "(0, 0)", "IndexError", "IndexError", "(2, 0)"]
    assert outside(ListRange, None) == ["(-1, 4)", "(0, -1)", "(0, 5)", "(5, 5)", "(4, 0)"]
    assert judge(observe(ListRange)).verdict is Verdict.PASS


class Tensors(TensorRange):
    """Gives tensors where indices are due: equal to the right ones, and no ints."""

    def get_embeds_indices_in_range(self, start_idx: int, end_idx: int) -> tuple[int, int]:
        start, end = super().get_embeds_indices_in_range(start_idx, end_idx)
        return start, as_tensor("1").sum() * end  # type: ignore[union-attr, return-value]


class Broken(ListRange):
    """Cannot be made."""

    def __init__(self, *_: object) -> None:
        raise ValueError("no room")


def test_an_answer_that_is_no_pair_of_ints_is_wrong() -> None:
    judged = judge(observe(Tensors))
    assert judged.verdict is Verdict.FAIL
    assert "tensor(" in judged.detail


def test_a_class_that_cannot_be_made_answers_nothing_right() -> None:
    judged = judge(observe(Broken))
    assert judged.verdict is Verdict.FAIL
    assert "gives ValueError: no room, 0 is right" in judged.detail


def changed(mask: str | None, **changes: object) -> RangeObservation:
    """A correct observation in which one placeholder's answers are replaced."""
    seen = observe(ListRange)
    asked = [replace(one, **changes) if one.mask == mask else one for one in seen.asked]  # type: ignore[arg-type]
    return replace(seen, asked=tuple(asked))


def test_a_wrong_count_is_named_with_both_numbers() -> None:
    judged = judge(changed("0110", embeds=3))
    assert (judged.value, judged.limit, judged.unit) == (1, 0, "wrong answers")
    assert judged.detail == "mask 0110 (4): get_num_embeds() gives 3, 2 is right"


def test_a_wrong_range_is_named_with_mask_start_and_end() -> None:
    judged = judge(changed("0110", ranges=(RangeAnswer(1, 2, (0, 1)), RangeAnswer(1, 3, (0, 1)))))
    assert judged.detail == "mask 0110 (4), start 1, end 3: gives (0, 1), (0, 2) is right"


def test_a_wrong_start_alone_is_wrong() -> None:
    judged = judge(changed("0110", ranges=(RangeAnswer(2, 3, (0, 2)),)))
    assert judged.detail == "mask 0110 (4), start 2, end 3: gives (0, 2), (1, 2) is right"


def test_one_wrong_answer_of_each_kind_is_told_and_the_rest_counted() -> None:
    wrong = (RangeAnswer(0, 0, (0, 2)), RangeAnswer(1, 2, (0, 0)), RangeAnswer(1, 3, "KeyError: 3"))
    judged = judge(changed("0110", ranges=wrong))
    assert judged.value == 3
    assert judged.detail == (
        "mask 0110 (4), start 0, end 0: gives (0, 2), (0, 0) is right; "
        "mask 0110 (4), start 1, end 2: gives (0, 0), (0, 1) is right (and 1 more)"
    )


def test_a_long_mask_is_cut_short() -> None:
    seen = observe(ListRange)
    long = ask(ListRange, "01" * 40, 80, [(0, 80)])
    judged = judge(replace(seen, asked=(*seen.asked, replace(long, embeds=1))))
    assert judged.detail.startswith(f"mask {'01' * 16}.. (80): get_num_embeds() gives 1, 40 is right")


NEEDED: dict[str, Callable[[RangeQuestions], bool]] = {
    "an empty mask": lambda one: one.mask != "",
    "a placeholder without a mask": lambda one: one.mask is not None,
    "a mask with a gap": lambda one: "101" not in (one.mask or ""),
    "end index 0, a whole mask": lambda one: not one.mask,
}


@pytest.mark.parametrize("missing", NEEDED)
def test_what_was_never_asked_is_no_pass(missing: str) -> None:
    seen = observe(ListRange)
    kept = tuple(one for one in seen.asked if NEEDED[missing](one))
    judged = judge(replace(seen, asked=kept))
    assert judged.verdict is Verdict.ERROR
    assert missing in judged.detail
    assert judge(replace(seen, asked=())).verdict is Verdict.ERROR


def test_a_mask_of_another_length_is_our_own_bug() -> None:
    seen = observe(ListRange)
    with pytest.raises(ValueError, match="mask '01' has not 3 positions"):
        judge(replace(seen, asked=(*seen.asked, RangeQuestions("01", 3, 1, ()))))


def test_a_class_is_cut_out_of_a_source_and_runs_under_its_own_lines(tmp_path: Path) -> None:
    # Out of an archive, where no file has those lines.
    tree = write_systems(tmp_path / "tree", ranges=RANGE_FILE)
    archive = shutil.make_archive(str(tmp_path / "vllm"), "zip", tree)
    bound = bind_range(open_source(archive))
    assert bound.filename == f"{archive}/vllm/multimodal/inputs.py"
    assert RANGE_FILE.splitlines()[bound.line - 1] == "class PlaceholderRange:"
    assert judge(observe(bound.make)).verdict is Verdict.PASS
    with pytest.raises(IndexError) as raised:
        bound.make(0, 2, as_tensor("01")).get_embeds_indices_in_range(0, 9)
    frame = traceback.extract_tb(raised.value.__traceback__)[-1]
    assert frame.filename == bound.filename
    assert frame.line == "return self.embeds_cumsum[index - 1] if index else NOTHING"


REFUSED = {
    "no class": (
        RANGE_FILE.replace("class PlaceholderRange", "class Another"),
        "has no class PlaceholderRange",
    ),
    "no method": (
        RANGE_FILE.replace("get_num_embeds", "count"),
        r"inputs\.py:17: PlaceholderRange has no method get_num_embeds, as vLLM has since 0\.16\.0",
    ),
    "a property": (
        RANGE_FILE.replace("    def get_num_embeds", "    @cached_property\n    def get_num_embeds"),
        "has no method get_num_embeds",
    ),
    "a name of vLLM's": (
        RANGE_FILE.replace("NOTHING = 0", "from vllm.numbers import NOTHING"),
        r"inputs\.py:3\d: PlaceholderRange needs 'NOTHING', which comes from vllm\.numbers",
    ),
    "not to be defined": (
        RANGE_FILE.replace("    length: int\n", "    length: int\n    later = 1 / NOTHING\n"),
        r"inputs\.py:20: PlaceholderRange cannot be defined without .*: division by zero",
    ),
    "no file": (None, r"has no vllm/multimodal/inputs\.py; it is there from vllm 0\.16\.0 on"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_source_without_such_a_class_is_refused(tmp_path: Path, what: str) -> None:
    text, said = REFUSED[what]
    files = {} if text is None else {"ranges": text}
    with pytest.raises(UsageError, match=said):
        bind_range(open_source(str(write_systems(tmp_path, **files))))


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
