"""R12: which placeholders a class is called for, what is judged, and where a class comes from."""

import shutil
import traceback
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases.selftest.engines.synthetic_vllm import RANGE_FILE, write_systems
from deepstack_harness.audit.ranges import (
    ListRange,
    MakeRange,
    ReferenceRange,
    TensorRange,
    as_tensor,
    bind_range,
    observe_ranges,
    range_named,
    stored_type,
)
from deepstack_harness.catalogue.registry import PLACEHOLDER_RANGES
from deepstack_harness.contract.facts import Bounds, RangeObservation, System, SystemSubject
from deepstack_harness.contract.oracles.neighbours import bounds_within
from deepstack_harness.contract.oracles.neighbours import judge_ranges as judge
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.verdicts import Verdict
from deepstack_harness.engines.known import open_source
from deepstack_harness.errors import UsageError

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
def test_the_reference_returns_inside_and_raises_outside(mask: str | None, start: int, end: int) -> None:
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
    assert judged.rule is Rule.RANGES
    assert judged.verdict is (Verdict.FAIL if fault else Verdict.PASS), judged
    assert ("an empty mask: get_num_embeds()" in judged.detail) == ("an empty mask" in fault)
    assert ("mask 1 (1), start 0, end 0: gives (0, 1), (0, 0) is right" in judged.detail) == (
        "end index 0" in fault
    )


def test_the_tensor_is_distinguished_from_the_list() -> None:
    assert stored_type(TensorRange) == "tensor"
    assert stored_type(ListRange) == "list"
    assert stored_type(lambda *_: object()) == "unknown"  # type: ignore[arg-type]


def test_every_short_mask_is_called_with_every_range() -> None:
    seen = {
        (placeholder.mask, placeholder.length): len(placeholder.ranges)
        for placeholder in observe(ListRange).placeholders
    }
    every = {("".join(bits), size) for size in range(7) for bits in product("01", repeat=size)}
    assert len(every) == 127
    assert seen.keys() == every | {(None, size) for size in range(7)}
    assert all(count == (size + 1) * (size + 2) // 2 for (_, size), count in seen.items())


class Tensors(TensorRange):
    """Returns tensors where indices are due: equal to the right ones, and no ints."""

    def get_embeds_indices_in_range(self, start_idx: int, end_idx: int) -> tuple[int, int]:
        start, end = super().get_embeds_indices_in_range(start_idx, end_idx)
        return start, as_tensor("1").sum() * end  # type: ignore[union-attr, return-value]


class Broken(ListRange):
    """Cannot be made."""

    def __init__(self, *_: object) -> None:
        raise ValueError("no room")


class Unmasked(ListRange):
    """Wrong only without a mask, and only for the whole placeholder."""

    def get_embeds_indices_in_range(self, start_idx: int, end_idx: int) -> tuple[int, int]:
        short = self.is_embed is None and end_idx == self.length == 6
        return super().get_embeds_indices_in_range(start_idx, end_idx - short)


def test_an_answer_that_is_no_pair_of_ints_is_wrong() -> None:
    judged = judge(observe(Tensors))
    assert judged.verdict is Verdict.FAIL
    assert "tensor(" in judged.detail


def test_a_class_that_cannot_be_made_returns_nothing_right() -> None:
    judged = judge(observe(Broken))
    assert judged.verdict is Verdict.FAIL
    assert "gives ValueError: no room, 0 is right" in judged.detail


def test_a_fault_without_a_mask_is_named_by_its_length() -> None:
    judged = judge(observe(Unmasked))
    assert judged.value == 7
    assert judged.detail.startswith("length 6 without a mask, start 0, end 6: gives (0, 5), (0, 6) is right")


def changed(mask: str, embeds: int | None = None, **ranges: Bounds | str) -> RangeObservation:
    """A correct observation in which values of one placeholder are replaced; `s1e3` names a range."""
    seen = observe(ListRange)
    placeholders = list(seen.placeholders)
    (at,) = (number for number, placeholder in enumerate(placeholders) if placeholder.mask == mask)
    old = placeholders[at]
    values = [
        ranges.get(f"s{start}e{end}", right)
        for (start, end), right in zip(bounds_within(len(mask)), old.ranges, strict=True)
    ]
    new_embeds = old.embeds if embeds is None else embeds
    placeholders[at] = replace(old, embeds=new_embeds, ranges=tuple(values))
    return replace(seen, placeholders=tuple(placeholders))


def test_a_wrong_count_is_named_with_both_numbers() -> None:
    judged = judge(changed("0110", embeds=3))
    assert (judged.value, judged.limit, judged.unit) == (1, 0, "wrong answers")
    assert judged.detail == "mask 0110 (4): get_num_embeds() gives 3, 2 is right"


def test_a_wrong_range_is_named_with_mask_start_and_end() -> None:
    judged = judge(changed("0110", s1e3=(0, 1)))
    assert judged.detail == "mask 0110 (4), start 1, end 3: gives (0, 1), (0, 2) is right"


def test_a_wrong_start_is_wrong_where_the_end_is_right() -> None:
    judged = judge(changed("0110", s2e3=(0, 2)))
    assert judged.detail == "mask 0110 (4), start 2, end 3: gives (0, 2), (1, 2) is right"


def test_one_wrong_answer_of_each_kind_is_named_and_the_rest_counted() -> None:
    judged = judge(changed("0110", s0e0=(0, 2), s1e2=(0, 0), s1e3="KeyError: 3"))
    assert judged.value == 3
    assert judged.detail == (
        "mask 0110 (4), start 0, end 0: gives (0, 2), (0, 0) is right; "
        "mask 0110 (4), start 1, end 2: gives (0, 0), (0, 1) is right (and 1 more)"
    )


@pytest.mark.parametrize(
    ("mask", "message"), [("", "an empty mask"), ("101", "mask 101 (3)"), (None, "length 0 without a mask")]
)
def test_what_was_never_called_is_no_pass(mask: str | None, message: str) -> None:
    seen = observe(ListRange)
    others = tuple(item for item in seen.placeholders if item.mask != mask)
    for left in (
        others,
        tuple(replace(item, ranges=()) if item.mask == mask else item for item in seen.placeholders),
    ):
        judged = judge(replace(seen, placeholders=left))
        assert (judged.verdict, judged.detail) == (Verdict.ERROR, f"never called: {message}")


def test_the_class_of_a_source_runs_under_its_own_lines(tmp_path: Path) -> None:
    # Out of an archive, where no file has those lines.
    tree = write_systems(tmp_path / "tree", ranges=RANGE_FILE)
    archive = shutil.make_archive(str(tmp_path / "vllm"), "zip", tree)
    bound = bind_range(open_source(archive))
    assert bound.filename == f"{archive}/vllm/multimodal/inputs.py"
    assert RANGE_FILE.splitlines()[bound.line - 1] == "class PlaceholderRange:"
    assert judge(bound.observe(SUBJECT)).verdict is Verdict.PASS
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
        r"inputs\.py:3\d: vllm\.multimodal\.inputs\.NOTHING is not there and is read",
    ),
    "not to be defined": (
        RANGE_FILE.replace("    length: int\n", "    length: int\n    later = 1 / NOTHING\n"),
        r"inputs\.py:17: PlaceholderRange could not be made: ZeroDivisionError: division by zero",
    ),
    "no file": (None, r"has no vllm/multimodal/inputs\.py; it is there from vllm 0\.16\.0 on"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_source_without_such_a_class_is_refused(tmp_path: Path, what: str) -> None:
    text, said = REFUSED[what]
    files = {} if text is None else {"ranges": text}
    with pytest.raises(UsageError, match=said):
        bind_range(open_source(str(write_systems(tmp_path, **files)))).observe(SUBJECT)
