"""The tolerance of R0 in each dtype: wide enough for rounding, and too narrow for any fault.

Faults are played uncompiled, where rounding adds nothing to them, and then judged with the
tolerance that Inductor gets: it depends on eager and fp64 only.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import Tensor, nn
from typing_extensions import override

from cases.shallow import shallow
from deepstack_harness.callers.by_name import caller_of
from deepstack_harness.contract.arm_spec import EAGER, ArmSpec
from deepstack_harness.contract.buffer_ref import registered
from deepstack_harness.contract.case import Case
from deepstack_harness.contract.observation import Distances, Observation
from deepstack_harness.contract.trace import Trace
from deepstack_harness.contract.verdicts import Judgement, Verdict
from deepstack_harness.errors import UsageError
from deepstack_harness.mutants.by_name import buffer_named
from deepstack_harness.oracles import distances, output
from deepstack_harness.oracles.observed_case import ObservedCase
from deepstack_harness.play.model import Model
from deepstack_harness.play.observe import play

INDUCTOR = "inductor/drop_all"
SIZES = (1, 2, 9, 33)
TRACE = Trace.parse("cap 33: profile 33; " + "; ".join(f"set {n}; forward {n}" for n in SIZES))
DTYPES = ("bfloat16", "float16", "float32", "float64")
ON_AOT_EAGER = pytest.mark.xdist_group("aot_eager")
ON_INDUCTOR = pytest.mark.xdist_group("inductor")


@cache
def model(family: str, dtype: str = "bfloat16") -> Model:
    torch.set_num_threads(1)
    return Model.build(family, dtype)


class Rewired(nn.Module):
    """A decoder whose levels come in another order, or zeroed where the order says None."""

    def __init__(self, decoder: nn.Module, order: Sequence[int | None]) -> None:
        super().__init__()
        self.decoder = decoder
        self.order = tuple(order)

    @override
    def forward(self, hidden: Tensor, positions: Tensor, payload: tuple[Tensor, ...] | None) -> Tensor:
        if payload is not None:
            none = torch.zeros_like(hidden)
            payload = tuple(none if level is None else payload[level] for level in self.order)
        out: Tensor = self.decoder(hidden, positions, payload)
        return out


def played(drawn: Model, arm: str = "eager", order: Sequence[int | None] | None = None) -> Observation:
    """The reference buffer; `order` rewires the decoder under test, not the one beside it."""
    tested = drawn if order is None else replace(drawn, decoder=Rewired(drawn.decoder, order))
    dtype = str(drawn.dtype).removeprefix("torch.")
    case = Case(drawn.family.name, registered("reference"), TRACE, ArmSpec.parse(arm), dtype=dtype)
    return play(case, tested, buffer_named("reference"))


def judged(observation: Observation, arm: str = INDUCTOR, size: int | None = None) -> Judgement:
    """R0 as under `arm`, of the whole trace, or of the steps for one size alone."""
    trace, steps = TRACE, observation.steps
    if size is not None:
        kept = [
            index for index, step in enumerate(TRACE) if step.tokens == size and "profile" not in str(step)
        ]
        trace = Trace(TRACE.capacity, tuple(TRACE.steps[index] for index in kept))
        steps = tuple(observation.steps[index] for index in kept)
    case = Case("qwen3_vl", registered("reference"), trace, ArmSpec.parse(arm), dtype=observation.dtype)
    return output.judge(ObservedCase(case, replace(observation, steps=steps)))


def measured(observation: Observation) -> list[Distances]:
    found = [facts.distances for facts in observation.steps if facts.step.startswith("forward")]
    assert len(found) == len(SIZES)
    return [one for one in found if one is not None]


@ON_AOT_EAGER
@pytest.mark.parametrize(
    ("family", "dtype"),
    [
        ("qwen3_vl", torch.bfloat16),
        pytest.param("granite4_vision", torch.float16, marks=pytest.mark.slow),
    ],
)
def test_eagers_own_kernels_give_eagers_own_answer(family: str, dtype: torch.dtype) -> None:
    found = measured(played(shallow(family, dtype), "aot_eager/drop_all"))
    assert [one.eager for one in found] == [0.0] * len(SIZES)
    assert all(one.effect > 1 for one in found)


@pytest.mark.slow  # 13 s; aot_eager is judged daily
@ON_INDUCTOR
@pytest.mark.parametrize(
    "arm", ["inductor/drop_all", pytest.param("inductor/drop_all/emulate_casts", marks=pytest.mark.slow)]
)
def test_inductor_rounds_otherwise_and_within_the_tolerance(arm: str) -> None:
    observation = played(shallow("qwen3_vl", torch.bfloat16), arm)
    # Should emulated casts ever make these 0, that arm can be held to eager exactly.
    assert all(0 < one.eager < distances.ROUNDINGS * one.rounding for one in measured(observation))
    assert judged(observation, arm).verdict is Verdict.PASS


def faults(levels: int) -> list[tuple[int | None, ...]]:
    """One level skipped, or two neighbours swapped."""
    skipped = [tuple(None if one == level else one for one in range(levels)) for level in range(levels)]
    swapped = [(*range(at), at + 1, at, *range(at + 2, levels)) for at in range(levels - 1)]
    return [*skipped, *swapped]


@pytest.mark.parametrize(
    ("family", "order"),
    [
        *(("qwen3_vl", order) for order in faults(3)),
        *(("granite4_vision", order) for order in faults(4)),
    ],
)
def test_a_level_skipped_or_swapped_is_above_rounding(family: str, order: Sequence[int | None]) -> None:
    observation = played(model(family), order=order)
    for size in SIZES:
        said = judged(observation, size=size)
        assert said.verdict is Verdict.FAIL, said
        assert said.value is not None
        assert said.limit is not None
        assert said.value > 1.5 * said.limit


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_smallest_fault_shows_in_every_dtype(dtype: str) -> None:
    # Of all the above: Granite's spatial levels swapped, of which the last comes before the last layer.
    observation = played(model("granite4_vision", dtype), order=(0, 1, 3, 2))
    for size in SIZES:
        assert judged(observation, size=size).verdict is Verdict.FAIL


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", ["qwen3_vl", "granite4_vision"])
def test_the_payload_moves_the_output_enough_to_judge_by(family: str, dtype: str) -> None:
    case = Case(family, registered("reference"), TRACE, ArmSpec.parse(INDUCTOR), dtype=dtype)
    found = measured(played(model(family, dtype)))
    assert all(one.effect > output.EFFECT * distances.tolerance(case, one) for one in found)


def additions(dtype: str, arm: str) -> Judgement:
    trace = Trace.parse("cap 16: capture 9; set 9; forward 9; set 9; replay 9; set 16; forward 16")
    case = Case(
        "qwen3_vl",
        registered("reference"),
        trace,
        ArmSpec.parse(arm),
        dtype=dtype,
        caller="order_of_additions",
    )
    drawn = shallow("qwen3_vl", torch.bfloat16) if dtype == "bfloat16" else model("qwen3_vl", dtype)
    return output.judge(ObservedCase(case, play(case, drawn, buffer_named("reference"))))


@ON_AOT_EAGER
@pytest.mark.parametrize(
    ("dtype", "arm", "verdict"),
    [
        ("bfloat16", "eager/drop_all", Verdict.FAIL),
        pytest.param("bfloat16", "aot_eager/drop_all", Verdict.FAIL, marks=pytest.mark.slow),
        ("bfloat16", "eager/full", Verdict.FAIL),
        ("float16", "eager/full", Verdict.FAIL),
        ("float32", "eager/full", Verdict.PASS),
        ("float64", "eager/full", Verdict.PASS),
    ],
)
def test_another_order_of_additions_shows_where_rounding_is_eagers(
    dtype: str, arm: str, verdict: Verdict
) -> None:
    other = additions(dtype, arm)
    assert other.verdict is verdict, other
    assert other.value is not None
    assert other.value > 0  # also where it is within the tolerance: the sum did go another way


def test_a_decoder_that_knows_no_other_order_is_refused() -> None:
    with pytest.raises(UsageError, match="knows no other order for Granite4VisionDecoder"):
        caller_of(
            Case("granite4_vision", registered("reference"), TRACE, EAGER, caller="order_of_additions")
        ).decoder(model("granite4_vision").decoder)
