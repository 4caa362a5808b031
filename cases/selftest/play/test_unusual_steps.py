"""Regions written in unusual ways: what reads a global, a class, a hook; what no copy can hold."""

import threading
import warnings
from collections.abc import Callable, Iterator
from typing import NamedTuple, NoReturn

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from cases.specimens.programs import rows
from deepstack_harness import Call, UsageError, compile_steps
from deepstack_harness.contract.oracles.promises import judge_steps
from deepstack_harness.play.region_calls import StepOptions
from deepstack_harness.play.steps import measure_steps
from deepstack_harness.play.steps_work import fresh_program

DROPPED = ("eager/drop_all",)
SETTINGS = {"scale": 1.0}
TABLE = torch.ones(8)
NUMBERS = np.ones(8, np.float32)
factor = 1.0


class Reads(nn.Module):
    """Reads globals in a method, a value of its class and a function in an attribute."""

    shift = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.act: Callable[[Tensor], Tensor] = torch.relu
        self.linear = nn.Linear(8, 8)

    @property
    def scale(self) -> float:
        return SETTINGS["scale"]

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.linear(x)) * self.scale * TABLE * factor + self.shift


def by_default(x: Tensor, table: dict[str, float] = {"w": 1.0}) -> Tensor:  # noqa: B006  # what is tested
    return x * table["w"]


def in_a_member(_region: object) -> None:
    SETTINGS["scale"] = 4.0


def in_place(_region: object) -> None:
    TABLE.add_(1)


def by_another_number(_region: object) -> None:
    global factor  # noqa: PLW0603  # what is tested
    factor = 3.0


def by_another_function(region: Reads) -> None:
    region.act = torch.tanh


def of_the_class(region: Reads) -> None:
    type(region).shift = 3.0


def by_a_hook(region: Reads) -> None:
    region.linear.register_forward_hook(lambda _module, _args, answer: answer * 2)


def of_a_default(_region: object) -> None:
    assert by_default.__defaults__
    by_default.__defaults__[0]["w"] = 6.0


class Changed(NamedTuple):
    """A change between two calls, and the words that name the input; "" for one that is no fault."""

    region: Callable[..., object]
    change: Callable[..., None]
    words: str


def doubles(x: Tensor) -> Tensor:
    return x * 2


def calls_a_helper(x: Tensor) -> Tensor:
    return doubles(x) + 1


def by_another_helper(_region: object) -> None:
    global doubles  # noqa: PLW0603  # what is tested
    doubles = torch.sin  # type: ignore[assignment]


def adds_numpy(x: Tensor) -> Tensor:
    return x + torch.from_numpy(NUMBERS)


def in_an_array(_region: object) -> None:
    NUMBERS[:] = 2


CHANGED = (
    Changed(calls_a_helper, by_another_helper, "`doubles` was code doubles (line"),
    Changed(Reads(), in_a_member, "`SETTINGS['scale']` was float 1.0 in the warm-up and is float 4.0 now"),
    Changed(Reads(), by_another_number, "`factor` was float 1.0"),
    Changed(Reads(), by_another_function, "`self.act` was code relu in the warm-up and is code tanh now"),
    Changed(Reads(), of_the_class, "`self.shift` was float 1.0 in the warm-up and is float 3.0 now"),
    Changed(Reads(), by_a_hook, "`self.linear._forward_hooks` was absent"),
    Changed(by_default, of_a_default, "`table['w']` was float 1.0"),
    Changed(Reads(), in_place, ""),
    Changed(adds_numpy, in_an_array, ""),
)


@pytest.mark.parametrize("changed", CHANGED, ids=lambda changed: changed.change.__name__)
def test_what_changes_between_two_calls_is_named_and_put_back(changed: Changed) -> None:
    x = rows(3)
    judged = compile_steps(changed.region, [(x,), changed.change, (x,)], arms=DROPPED)
    assert [finding.promise for finding in judged.broken] == (["I1"] if changed.words else []), judged
    assert changed.words in str(judged)
    assert any(finding.chances for finding in judged.rows)
    assert (SETTINGS, factor, Reads.shift, by_default.__defaults__) == (
        {"scale": 1.0},
        1.0,
        1.0,
        ({"w": 1.0},),
    )
    assert torch.equal(TABLE, torch.ones(8))


class HoldsALock(nn.Module):
    """Has what Python cannot copy."""

    def __init__(self) -> None:
        super().__init__()
        self.lock, self.local = threading.Lock(), threading.local()

    def forward(self, x: Tensor) -> Tensor:
        return x * 2


class Rows(Tensor):
    """A tensor of a class that copies no tensor."""


def made_of_eight_bits(x: Tensor) -> Tensor:
    return x.float() * 2


def of_a_local_class() -> tuple[Callable[..., object], list[object]]:
    """Return a region that answers a class of its own, which is another one each time."""

    class Out(NamedTuple):
        rows: Tensor

    return (lambda x: Out(x * 2)), [(rows(3),), (rows(3, 1),)]


RIGHT: dict[str, tuple[Callable[..., object], Callable[[int], Tensor]]] = {
    "a lock": (HoldsALock(), lambda seed: rows(3, seed)),
    "compiled function": (torch.compile(by_default, backend="eager"), lambda seed: rows(3, seed)),
    "compiled module": (torch.compile(nn.Linear(8, 8), backend="eager"), lambda seed: rows(3, seed)),
    "tensor of another class": (torch.sin, lambda seed: rows(3, seed).as_subclass(Rows)),
    "weight norm": (weight_norm(nn.Linear(8, 8)), lambda seed: rows(3, seed)),
    "8 bits": (made_of_eight_bits, lambda seed: rows(3, seed).to(torch.float8_e4m3fn)),
}


@pytest.mark.parametrize("name", RIGHT)
def test_it_is_judged_and_kept(name: str) -> None:
    region, x = RIGHT[name]
    judged = compile_steps(region, [(x(0),), (x(1),)], arms=DROPPED)
    assert judged.good, judged


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
        (scripted, "torch.compile does not support compiling torch.jit.script"),
    ],
)
def test_what_is_not_judged_says_why(make: Callable[[], Callable[..., object]], why: str) -> None:
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
    (found,) = (each for each in judged.rows if each.promise == "I3" and each.arm == DROPPED[0])
    assert found.chances == 2
    assert judged.good == good, judged
    assert good or "neutral rows of `ids`, `mask` with other values change" in str(judged)


def test_neutral_rows_are_tensors() -> None:
    with pytest.raises(UsageError, match="neutral rows are int 3: give views of tensors"):
        compile_steps(torch.sin, [(rows(3),), (rows(3, 1),)], arms=DROPPED, neutral=lambda _: [3])  # type: ignore[list-item]


def test_a_class_that_is_made_anew_for_each_run_is_one_class() -> None:
    judged = judge_steps(measure_steps(fresh_program(of_a_local_class), StepOptions(DROPPED), "local"))
    assert judged.good, judged


def test_a_branch_on_requires_grad_is_one_on_the_layout() -> None:
    def asks(x: Tensor) -> Tensor:
        return x * 2 if x.requires_grad else x * 3

    judged = compile_steps(asks, [(rows(3),), (rows(3).requires_grad_(),)], arms=DROPPED)
    assert [finding.promise for finding in judged.broken] == ["I2"]
    assert "and is float32 tensor [3, 8] on cpu with requires_grad now" in str(judged)


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
def test_what_the_user_wrote_beside_the_region_is_blamed(run: Callable[..., object], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        run((rows(3),))


def test_what_has_no_values_is_not_judged() -> None:
    judged = compile_steps(torch.sin, [(torch.ones(3, device="meta"),)] * 2, arms=DROPPED)
    assert judged.unjudged == ["a tensor on the device 'meta' has no values to compare"]
