"""Regions over steps: wrong ones are caught by their promise with the input named, right ones pass."""

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cases.by_day import by_day
from cases.specimens import programs
from cases.specimens.programs import rows
from deepstack_harness import Call, UsageError, compile_steps
from deepstack_harness.compile.members import StatePlace, places
from deepstack_harness.compile.torch_compat.modes import OtherLastBits, by_turns
from deepstack_harness.contract.rules import Promise
from deepstack_harness.contract.steps import Difference
from deepstack_harness.contract.verdicts import Verdict
from deepstack_harness.play import region_state, state
from deepstack_harness.play.call_differences import differences_of
from deepstack_harness.play.region_calls import Change


def test_a_part_that_is_the_call_itself_splits_nothing() -> None:
    steps: list[object] = [(rows(3),), (rows(3, 1),)]
    judged = compile_steps(torch.sin, steps, arms=["eager/drop_all"], split=lambda x: [(x,)])
    assert {finding.verdict for finding in judged.rows if finding.promise is Promise.OWNERSHIP} == {
        Verdict.SKIP
    }


def test_a_part_that_raises_is_no_answer() -> None:
    steps: list[object] = [(rows(6),), (rows(6, 1),)]
    judged = compile_steps(
        lambda x: x + x[3], steps, arms=["eager/stock"], split=lambda x: [(x[:4],), (x[4:],)]
    )
    details = [finding.detail for finding in judged.broken if finding.promise is Promise.OWNERSHIP]
    assert details
    assert details[0].startswith("step 1: a part of it ends with IndexError")


def test_a_region_that_cannot_be_captured_is_not_judged() -> None:
    judged = compile_steps(lambda x: x[x > 0], [(rows(3),), (rows(3),)], arms=["eager/full"])
    assert "eager/full: RuntimeError: aten.index.Tensor is not permitted" in judged.unjudged[0]
    assert not judged.good


def test_the_region_and_its_steps_are_left_as_they_are() -> None:
    module, x = programs.Counter(), rows(3)
    before = x.clone()
    compile_steps(module, [Call(x), lambda counter: x.add_(counter.calls), Call(x)], arms=["eager/stock"])
    assert module.calls == 0
    assert torch.equal(x, before)


def test_state_that_is_not_put_back_is_not_judged() -> None:
    draws = (float(number) for number in range(100))

    class Restless(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + next(draws)

    judged = compile_steps(Restless(), [Call(rows(2)), Call(rows(3))])
    why = "answer of step 1 differs by 5 between two uncompiled runs"
    assert judged.region.restless == f"{why}: `draws` is a generator, which is not put back"
    assert not judged.good
    assert not judged.rows
    assert "not judged: answer of step 1 differs" in str(judged)


def test_a_region_that_cannot_be_compiled_is_not_judged() -> None:
    def broken(x: Tensor) -> Tensor:
        print("a graph break")
        return x * 2

    judged = compile_steps(broken, [Call(rows(2)), Call(rows(3))], arms=["eager/drop_all"])
    assert "eager/drop_all: Unsupported" in judged.unjudged[0]
    assert not judged.good
    assert compile_steps(broken, [Call(rows(2)), Call(rows(3))], arms=["eager/stock/breaks"]).good


def test_a_branch_on_a_size_is_judged_by_the_arm_that_its_error_names() -> None:
    arms = ["eager/drop_all", "eager/drop_all/static"]
    judged = compile_steps(
        lambda x: x * 2 if x.shape[0] > 2 else x + 1, [Call(rows(2)), Call(rows(3))], arms=arms
    )
    (why,) = judged.unjudged
    assert "--arm eager/drop_all/static compiles each size for itself" in why
    assert [(row.arm, str(row.rule)) for row in judged.broken] == [("eager/drop_all/static", "I1")]


def test_steps_that_are_all_alike_test_nothing() -> None:
    x = rows(2)
    judged = compile_steps(torch.sin, [Call(x), Call(x)], arms=["eager/drop_all"])
    assert not judged.good
    assert "nothing was put to the test" in str(judged)


def test_an_input_without_influence_is_no_chance() -> None:
    def ignoring(x: Tensor, mask: Tensor | None = None) -> Tensor:
        return (x if mask is None else x * 1) + 1

    x = rows(2)
    judged = compile_steps(ignoring, [Call(x), Call(x, mask=rows(2))], arms=["eager/drop_all"])
    assert not judged.good
    assert "step 2 cannot show whether `mask` is read" in str(judged)


def test_a_refusal_is_reported_and_is_no_wrong_answer() -> None:
    def double(x: Tensor) -> Tensor:
        return x * 2

    # Eight graphs of one function are torch's limit; one more is refused here.
    steps: list[object] = [Call(torch.ones(*[2] * dims)) for dims in range(1, 13)]
    judged = compile_steps(double, steps, arms=["eager/stock/static"])
    assert judged.good, judged
    assert "refuses with FailOnRecompileLimitHit" in str(judged)


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ([], "0 calls with warm_up=1 leave none to judge"),
        ([Call(rows(2))], "1 calls with warm_up=1 leave none to judge"),
        ([rows(2), rows(2)], r"step 1 is float32 tensor \[2, 8\] on cpu: write Call"),
        ([{1: rows(2)}, ()], "step 1 is .*: write Call"),
    ],
)
def test_steps_that_are_none_are_refused(steps: list[object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        compile_steps(torch.sin, steps)


@pytest.mark.parametrize(
    ("arm", "message"), [("no-deepstack", "cannot run steps"), ("eager/drop_all/tp2", "cannot run steps")]
)
def test_arms_that_need_a_decoder_are_refused(arm: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        compile_steps(torch.sin, [(rows(2),), (rows(3),)], arms=[arm])


def sized(x: Tensor) -> Tensor:
    return x * 2 + 1


def half(x: Tensor) -> Tensor:
    y = x.bfloat16()
    return (y * 1.37 + y) * y.sigmoid() - y * 0.11


@pytest.mark.slow  # 5 s
def test_options_of_inductor_in_the_name_of_an_arm_are_applied(monkeypatch: pytest.MonkeyPatch) -> None:
    by_size: list[object] = [(rows(4),), (rows(6),)]
    asserts, none = "inductor/drop_all/static", "inductor/drop_all/static/no_size_asserts"
    judged = compile_steps(sized, by_size, arms=[asserts, none])
    assert f"{asserts}: step 2 refuses with AssertionError: expected size 6==4" in str(judged)
    assert [finding.arm for finding in judged.broken] == [none]

    apart: list[float] = []
    compare = differences_of

    def noting(place: str, wanted: object, actual: object, limits: Mapping[str, float]) -> list[Difference]:
        if isinstance(wanted, Tensor) and isinstance(actual, Tensor):
            apart.append(float((wanted - actual).abs().max()))
        return compare(place, wanted, actual, limits)

    monkeypatch.setattr("deepstack_harness.play.steps.differences_of", noting)
    for arm in ("inductor/drop_all", "inductor/drop_all/emulate_casts"):
        compile_steps(half, by_size, arms=arm)
    assert [value > 0 for value in apart] == [True, True, False, False]


def test_what_cannot_be_put_back_is_one_sentence() -> None:
    module = programs.Scorer()
    module.draws = (number for number in range(3))  # type: ignore[assignment]
    judged = compile_steps(module, [(rows(2),), (rows(3),)])
    (why,) = judged.unjudged
    assert why.startswith(
        "self.draws is a generator, which cannot be put back before each run: have a number"
    )


def test_a_step_is_not_blamed_for_what_an_earlier_one_left() -> None:
    """The count is lost in every replay by itself, and the output by the count is right each time."""
    x = rows(2)
    judged = compile_steps(programs.Counter(), [Call(x), Call(x), Call(x)], arms=["eager/full"])
    (lost,) = judged.broken
    assert (lost.promise, lost.steps) == (Promise.EFFECTS, (2, 3))
    assert "step 2: self.calls is int 1, not int 2" in lost.detail


def test_a_state_that_cannot_be_made_equal_ends_the_arm_and_is_reported() -> None:
    class Grows(nn.Module):
        sizes: tuple[int, ...] = ()

        def forward(self, x: Tensor) -> Tensor:
            self.sizes = (*self.sizes, len(x))
            return x * 2

    x, module = rows(2), Grows()
    module.sizes = (1,)
    judged = compile_steps(module, [Call(x), Call(x), Call(x)], arms=["eager/full"])
    assert [(finding.promise, finding.steps) for finding in judged.broken] == [(Promise.EFFECTS, (2,))]
    assert "not judged: eager/full: what step 2 left cannot be made equal" in str(judged)
    assert "later steps were not run" in str(judged)


def big_numbers_cancel(x: Tensor) -> Tensor:
    """Return about 0, of numbers whose last digit is 8e-6."""
    return (x + 10).sum(-1) - (x.sum(-1) + 80)


def test_the_rounding_of_each_operation_is_in_the_limit() -> None:
    judged = compile_steps(big_numbers_cancel, [Call(rows(4)), Call(rows(5))], arms="eager/drop_all")
    assert all(2e-5 < call.limit < 1e-3 for call in judged.region.arms[0].calls)


def test_noise_moves_what_is_written_and_leaves_masks() -> None:
    noise = OtherLastBits(by_turns)
    with noise:
        in_place, mask = torch.ones(4).mul_(2), torch.arange(4) > 1
        half = torch.ones(4, dtype=torch.bfloat16) * 2
    assert in_place.tolist() == [2 + 2**-22, 2 - 2**-22] * 2
    assert half.tolist() == [2 + 2**-6, 2 - 2**-6] * 2
    assert mask.tolist() == [False, False, True, True]
    assert noise.coarsest == torch.finfo(torch.bfloat16).eps


class ReadsATable(nn.Module):
    """Scales by one of many numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.table = dict.fromkeys(range(10_000), 1.0)
        self.row = [1.0] * 10_000

    def forward(self, x: Tensor) -> Tensor:
        return x * self.table[500] * self.row[7]


@pytest.mark.slow  # costs time where it fails, and no more
def test_a_table_is_one_place_of_each_walk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call has five walks by itself; a run to compare with and an arm have one for each call."""
    seen: list[int] = []

    def counted(roots: Iterable[StatePlace], *args: Any, **kwargs: Any) -> Iterator[StatePlace]:
        count = 0
        for place in places([*roots], *args, **kwargs):
            count += 1
            if place.path == "self":
                seen.append(0)
            yield place
        if seen:
            seen[-1] = max(seen[-1], count)

    monkeypatch.setattr(region_state, "places", counted)
    monkeypatch.setattr(state, "places", counted)
    judged = compile_steps(ReadsATable(), [Call(rows(3)), Call(rows(3))], arms="eager/drop_all")
    assert not judged.unjudged
    assert len(seen) <= 15
    assert max(seen) < 100


@pytest.mark.parametrize(
    ("change", "name"),
    by_day(
        [
            (lambda region: region.table.update({500: 3.0}), "`self.table[500]` was float 1.0"),
            (lambda region: region.row.__setitem__(7, 3.0), "`self.row[7]` was float 1.0"),
        ]
    ),
)
def test_a_member_of_a_table_is_named(change: Change, name: str) -> None:
    region = ReadsATable()
    judged = compile_steps(region, [Call(rows(3)), change, Call(rows(3))], arms="eager/drop_all")
    assert [str(row.rule) for row in judged.broken] == ["I1"]
    assert name in str(judged)
    assert (region.table[500], region.row[7]) == (1.0, 1.0)


@pytest.mark.parametrize(
    ("wanted", "actual", "differ"),
    [(math.nan, math.nan, False), (math.nan, 1.0, True), (1.0, math.nan, True), ("a", "a", False)],
)
def test_nan_equals_nothing_but_nan(wanted: object, actual: object, differ: bool) -> None:
    assert bool(differences_of("answer", wanted, actual, {})) is differ
