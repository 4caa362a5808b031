"""Granite: levels cut or padded to fit, and what a full buffer does to a graph whose guards are gone.

The table is vllm 40917's: the whole buffer goes into the compiled model, the
profile run has as many tokens, and the branch that would cut it is traced away.
"""

import re
from contextlib import closing
from dataclasses import dataclass

import pytest
import torch
from torch.nn import functional as F  # noqa: N812  (its usual name)

from cases.by_day import by_day
from cases.selftest.models.transformers_models import CPU, build, inputs, run
from deepstack_harness.compile.captured import open_arm
from deepstack_harness.contract.arm import ArmSpec
from deepstack_harness.contract.protocols import Inputs, Profile
from deepstack_harness.errors import UsageError
from deepstack_harness.models.granite4_vision import First, Granite4VisionConfig, Granite4VisionFamily
from deepstack_harness.models.layers import AttentionKind, attended_rows
from deepstack_harness.play.model import distance

GRANITE = "granite4_vision"
CAPACITY = 64


@pytest.mark.parametrize("first", ["hidden_first", "payload_first"])
@pytest.mark.parametrize("rows", [0, 5, 17, 40])
def test_levels_are_cut_or_padded_to_the_tokens(first: str, rows: int) -> None:
    batch, other = inputs(GRANITE, 17), inputs(GRANITE, rows)
    assert other.payload is not None
    fitted = [F.pad(level[:17], (0, 0, 0, 17 - min(rows, 17))) for level in other.payload]
    decoder = build(f"{GRANITE}:{first}")
    assert torch.equal(run(decoder, batch, other.payload), run(build(GRANITE), batch, fitted))


def test_levels_beyond_the_layout_are_not_used() -> None:
    batch = inputs(GRANITE, 17, levels=5)
    assert batch.payload is not None
    decoder = build(GRANITE)
    assert torch.equal(run(decoder, batch, batch.payload), run(decoder, batch, batch.payload[:4]))


def test_levels_come_layerwise_first_and_not_in_the_order_of_the_layers() -> None:
    released = Granite4VisionConfig(layers=40, layerwise=(9, 6, 3, 0), spatial=(12, 15, 18, 21))
    assert released.targets == (9, 6, 3, 0, 12, 15, 18, 21)
    assert Granite4VisionConfig().targets == (1, 0, 2, 4)


@pytest.mark.parametrize("targets", [(0, 0), (0, 5), (-1, 0)])
def test_targets_are_different_layers(targets: tuple[int, ...]) -> None:
    with pytest.raises(UsageError, match=r"must be different ones of 0\.\.4"):
        Granite4VisionConfig(layerwise=targets, spatial=())


def test_an_unknown_first_input_is_refused() -> None:
    with pytest.raises(UsageError, match="'positions'; known are hidden, payload"):
        Granite4VisionConfig(first="positions")  # type: ignore[arg-type]


def one_layer(first: First, attention: AttentionKind = "opaque") -> Granite4VisionFamily:
    config = Granite4VisionConfig(layers=1, layerwise=(0,), spatial=(), first=first, attention=attention)
    return Granite4VisionFamily(config)


def full_buffer(family: Granite4VisionFamily, tokens: int) -> Inputs:
    """`tokens` rows of engine-sized storage: a graph that reads beyond them reads what lies there."""
    generator = torch.Generator().manual_seed(tokens)
    hidden, *payload = torch.randn(1 + family.levels, CAPACITY, family.hidden, generator=generator)
    return Inputs(hidden[:tokens], family.positions(CAPACITY, CPU)[:, :tokens], tuple(payload))


@dataclass(frozen=True)
class Outcome:
    """Rows that came out, and that attention was given; None where the call raised."""

    rows: int | None
    attended: tuple[int, ...]
    says: str = ""


ALL_ROWS = Outcome(CAPACITY, (CAPACITY,))
ONE_ROW = Outcome(1, (1,))


def play(arm: str, first: First, profiled: int, tokens: int = 1) -> tuple[Outcome, float]:
    """Compile with `profiled` tokens and a full buffer, call with `tokens`; largest error of their rows."""
    family = one_layer(first)
    decoder = family.build(dtype=torch.float32, device=CPU, seed=0)
    profile = Profile(CAPACITY, family.hidden, family.levels, torch.float32, CPU)
    batch = full_buffer(family, tokens)
    eager = run(decoder, batch, batch.payload)
    with closing(open_arm(ArmSpec.parse(arm), decoder, profile)) as session, attended_rows() as attended:
        session.forward(full_buffer(family, profiled))
        attended.clear()
        try:
            out = session.forward(batch)
        except (AssertionError, RuntimeError) as error:
            return Outcome(None, tuple(attended), str(error)), 0.0
        return Outcome(len(out), tuple(attended)), distance(out[:tokens], eager)


NO_ASSERTS = "inductor/drop_all/no_size_asserts"
AOT_EAGER = pytest.mark.xdist_group("aot_eager")
INDUCTOR = pytest.mark.xdist_group("inductor")


@pytest.mark.parametrize(
    ("arm", "first", "profiled", "expected"),
    by_day(
        [
            # One token is stretched to the buffer's rows by the addition itself.
            pytest.param("eager/drop_all", "hidden", CAPACITY, ALL_ROWS, marks=AOT_EAGER),
            pytest.param("eager/drop_all", "payload", CAPACITY, ALL_ROWS, marks=AOT_EAGER),
            pytest.param("aot_eager/drop_all", "payload", CAPACITY, ALL_ROWS, marks=AOT_EAGER),
            pytest.param("aot_eager/drop_all", "hidden", CAPACITY - 1, ONE_ROW, marks=AOT_EAGER),
            # The incident 40917 has the same with Inductor, every day.
            pytest.param(NO_ASSERTS, "payload", CAPACITY, ALL_ROWS, marks=[INDUCTOR, pytest.mark.slow]),
            pytest.param(NO_ASSERTS, "hidden", CAPACITY, ONE_ROW, marks=[INDUCTOR, pytest.mark.slow]),
            pytest.param(NO_ASSERTS, "payload", CAPACITY - 1, ONE_ROW, marks=[INDUCTOR, pytest.mark.slow]),
        ]
    ),
)
def test_rows_that_one_token_costs(arm: str, first: First, profiled: int, expected: Outcome) -> None:
    outcome, error = play(arm, first, profiled)
    assert outcome == expected
    assert error < 1e-5


@pytest.mark.parametrize(
    ("arm", "first", "tokens", "says"),
    [
        pytest.param("aot_eager/drop_all", "hidden", 1, "shape '.1, 4, 32.' is invalid", marks=AOT_EAGER),
        pytest.param(
            "aot_eager/drop_all", "payload", 2, "must match the size", marks=[AOT_EAGER, pytest.mark.slow]
        ),
        pytest.param(
            "inductor/drop_all", "payload", 1, "expected size 1==64", marks=[INDUCTOR, pytest.mark.slow]
        ),
        pytest.param(
            "inductor/drop_all", "hidden", 1, "expected size 64==1", marks=[INDUCTOR, pytest.mark.slow]
        ),
    ],
)
def test_sizes_that_share_a_symbol_and_differ_raise(arm: str, first: First, tokens: int, says: str) -> None:
    outcome, _ = play(arm, first, CAPACITY, tokens)
    assert (outcome.rows, outcome.attended) == (None, ())
    assert re.search(says, outcome.says)
