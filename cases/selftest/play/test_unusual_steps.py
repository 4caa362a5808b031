"""Regions in unusual ways: what is put back, what is refused or not judged; see `cases.specimens.unusual`."""

import warnings
from collections.abc import Callable, Iterator
from typing import NamedTuple, NoReturn

import pytest
import torch
from torch import Tensor, nn

from cases.specimens import unusual
from cases.specimens.kit import Made
from cases.specimens.programs import rows
from deepstack_harness import Call, UsageError, compile_steps
from deepstack_harness.contract.oracles.promises import judge_steps
from deepstack_harness.play.region_calls import StepOptions
from deepstack_harness.play.steps import measure_steps
from deepstack_harness.play.steps_work import fresh_program

DROPPED = ("eager/drop_all",)
TABLE = torch.ones(8)


@pytest.mark.parametrize(
    "make",
    [
        unusual.member_of_a_global_in_a_property, unusual.global_number_of_a_method,
        unusual.value_of_the_class, unusual.member_of_a_default, unusual.global_tensor_written_in_place,
    ],
)  # fmt: skip
def test_what_changes_between_two_calls_is_put_back(make: Callable[[], Made]) -> None:
    region, steps = make()
    assert compile_steps(region, steps, arms=DROPPED).rows
    shared = unusual.SETTINGS, unusual.factor, unusual.Reads.shift, unusual.by_default.__defaults__
    assert shared == ({"scale": 1.0}, 1.0, 1.0, ({"w": 1.0},))
    assert torch.equal(unusual.TABLE, torch.ones(8))


def of_a_local_class() -> tuple[Callable[..., object], list[object]]:
    """Return a region that returns a class of its own, which is another one each time."""

    class Out(NamedTuple):
        rows: Tensor

    return (lambda x: Out(x * 2)), [(rows(3),), (rows(3, 1),)]


def yields(x: Tensor) -> Iterator[Tensor]:
    yield x * 2


def prints(x: Tensor) -> Tensor:
    print("a graph break")
    return x * 2


def scripted() -> Callable[..., object]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch advises against it
        return torch.jit.trace(nn.Linear(8, 8), rows(3))  # type: ignore[no-untyped-call, no-any-return]


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: yields, "answer of step 1 is a generator: what it would give is not compared"),
        (lambda: prints, "Dynamo does not know how to trace builtin operator `print`"),
        (scripted, "found no compiled frames"),
    ],
)
def test_what_is_not_judged_has_a_reason(make: Callable[[], Callable[..., object]], why: str) -> None:
    judged = compile_steps(make(), [(rows(3),), (rows(3, 1),)], arms=DROPPED)
    assert why in judged.unjudged[0]
    assert not judged.good


async def waits(x: Tensor) -> Tensor:
    return x


def test_a_coroutine_is_refused() -> None:
    with pytest.raises(UsageError, match="'waits' is a coroutine"):
        compile_steps(waits, [(rows(3),), (rows(3, 1),)])


def test_calls_may_be_generated_and_nothing_else_is_taken_for_calls() -> None:
    x = rows(3)
    _, steps = fresh_program(lambda: (torch.sin, (Call(x) for _ in range(2))))()
    assert len(steps) == 2
    with pytest.raises(UsageError, match=r"the calls are float32 tensor \[3, 8\] on cpu: return"):
        fresh_program(lambda: (torch.sin, x))()
    with pytest.raises(UsageError, match="'neutrals' is no keyword of compile_steps"):
        fresh_program(lambda: (torch.sin, [(x,), (x,)], {"neutrals": None}))()


def picks(ids: Tensor, mask: Tensor, live: Tensor) -> Tensor:
    return torch.where(mask, TABLE[ids], 0.0).sum() + 0 * live


def picks_live_rows(ids: Tensor, mask: Tensor, live: Tensor) -> Tensor:
    return torch.where(mask & (torch.arange(len(ids)) < live), TABLE[ids] * ids, 0.0).sum()


def padding(ids: Tensor, mask: Tensor, live: Tensor) -> list[Tensor]:
    return [ids[int(live) :], mask[int(live) :]]


@pytest.mark.parametrize(("region", "good"), [(picks, False), (picks_live_rows, True)])
def test_neutral_rows_may_be_integers_and_are_named(region: Callable[..., object], good: bool) -> None:
    steps = [
        (torch.arange(8).flip(0), torch.ones(8, dtype=torch.bool), torch.tensor(live)) for live in (6, 3)
    ]
    judged = compile_steps(region, steps, arms=DROPPED, neutral=padding)
    (found,) = (row for row in judged.rows if row.promise == "I3" and row.arm == DROPPED[0])
    assert found.chances == 2
    assert judged.good == good, judged
    assert good or "neutral rows of `ids`, `mask` with other values change" in str(judged)


def test_neutral_rows_are_tensors() -> None:
    with pytest.raises(UsageError, match="neutral rows are int 3: give views of tensors"):
        compile_steps(torch.sin, [(rows(3),), (rows(3, 1),)], arms=DROPPED, neutral=lambda _: [3])  # type: ignore[list-item]


def test_a_class_that_is_made_anew_for_each_run_is_one_class() -> None:
    judged = judge_steps(measure_steps(fresh_program(of_a_local_class), StepOptions(DROPPED), "local"))
    assert judged.good, judged


def fails(*_: object) -> NoReturn:
    raise LookupError("not there")


def fails_without_arguments() -> None:
    fails()


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (lambda x: compile_steps(torch.sin, [x, fails, x]), "a step ends with LookupError: not there"),
        (lambda x: compile_steps(torch.sin, [x, x], neutral=fails), "'fails' ends with LookupError"),
        (lambda x: compile_steps(torch.sin, [x, x], live=fails), "`live` ends with LookupError: not there"),
        (lambda x: compile_steps(torch.sin, [x, x], split=lambda x: [x]), r"a part of step 1 is float32"),
        (lambda _: fresh_program(fails_without_arguments)(), "ends with LookupError: not there"),
    ],
)
def test_what_the_user_wrote_next_to_the_region_is_blamed(run: Callable[..., object], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        run((rows(3),))


def test_what_has_no_values_is_not_judged() -> None:
    judged = compile_steps(torch.sin, [(torch.ones(3, device="meta"),)] * 2, arms=DROPPED)
    assert judged.unjudged == ["a tensor on the device 'meta' has no values to compare"]
