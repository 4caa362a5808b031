"""Every family compiled as engines compile it: one graph for every count, and transformers' answers."""

from contextlib import closing
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from cases.selftest.families.transformers_models import (
    COUNTS,
    CPU,
    ask,
    build,
    cast,
    inputs,
    loaded,
    run,
    visual_tokens,
)
from deepstack_harness.arms.open import open_arm
from deepstack_harness.contract.arm_spec import ArmSpec
from deepstack_harness.contract.protocols import Inputs, Profile, Session
from deepstack_harness.families.by_name import family_named
from deepstack_harness.families.qwen3_vl import Qwen3VLConfig, Qwen3VLFamily
from deepstack_harness.torch_compat import dynamo

AOT_EAGER = pytest.mark.xdist_group("aot_eager")
INDUCTOR = pytest.mark.xdist_group("inductor")
NIGHTLY = [INDUCTOR, pytest.mark.slow]
"""10 s to 30 s each."""


def opened(arm: str, name: str, decoder: torch.nn.Module) -> Session:
    family = family_named(name)
    profile = Profile(16, family.hidden, family.levels, torch.float32, CPU)
    return open_arm(ArmSpec.parse(arm), decoder, profile)


# Both attentions that engines know, and the one that is traced through: no compile more than needed.
@pytest.mark.parametrize(
    ("arm", "name", "kind"),
    [
        pytest.param("aot_eager/drop_all", "qwen3_vl", ":written_out", marks=[AOT_EAGER, pytest.mark.slow]),
        pytest.param("aot_eager/drop_all", "qwen3_omni_moe_thinker", "", marks=[AOT_EAGER, pytest.mark.slow]),
        pytest.param("aot_eager/drop_all", "granite4_vision", "", marks=AOT_EAGER),
        pytest.param("inductor/drop_all", "qwen3_vl", "", marks=NIGHTLY),
        pytest.param("inductor/drop_all", "qwen3_omni_moe_thinker", ":opaque", marks=NIGHTLY),
        pytest.param("inductor/drop_all", "granite4_vision", ":opaque", marks=NIGHTLY),
    ],
)
def test_one_graph_traced_at_16_equals_transformers_at_every_count(arm: str, name: str, kind: str) -> None:
    with closing(opened(arm, name, loaded(name + kind))) as session:
        session.forward(inputs(name, 16))
        for tokens in COUNTS:
            visual = visual_tokens(tokens)
            given = inputs(name, tokens, visual=visual)
            assert_close(session.forward(given), ask(name, given, visual), atol=1e-5, rtol=0)
        # The fused CPU kernel of a batched sdpa would end the process here (SIGFPE).
        assert session.forward(inputs(name, 0)).shape == (0, family_named(name).hidden)
        assert dynamo.graphs_built() == 1


@pytest.mark.parametrize(
    ("backend", "name"),
    [
        pytest.param("eager", "qwen3_vl:written_out", marks=[AOT_EAGER, pytest.mark.slow]),
        pytest.param("eager", "qwen3_omni_moe_thinker:opaque", marks=AOT_EAGER),
        pytest.param("inductor", "qwen3_vl:written_out", marks=NIGHTLY),
        pytest.param("inductor", "qwen3_omni_moe_thinker:opaque", marks=NIGHTLY),
    ],
)
def test_unbacked_sizes_make_one_graph_for_0_and_1_as_well(backend: str, name: str) -> None:
    decoder = build(name)
    with closing(opened(f"{backend}/drop_all/mark_unbacked", name, decoder)) as session:
        for tokens in (5, 9, 2, 1, 0):
            given = inputs(name, tokens)
            assert_close(session.forward(given), run(decoder, given, given.payload), atol=1e-5, rtol=0)
        assert dynamo.graphs_built() == 1


@AOT_EAGER
def test_unbacked_sizes_that_differ_raise() -> None:
    name = "qwen3_vl:opaque"
    with closing(opened("eager/drop_all/mark_unbacked", name, build(name))) as session:
        long, short = inputs(name, 5), inputs(name, 4)
        session.forward(long)
        with pytest.raises(RuntimeError, match=r"Eq\(u\d, u\d\)"):
            session.forward(Inputs(short.hidden, long.positions, long.payload))


@AOT_EAGER
def test_granite_asks_for_its_sizes_and_so_takes_no_unbacked_ones() -> None:
    name = "granite4_vision:opaque"
    with (
        closing(opened("eager/drop_all/mark_unbacked", name, build(name))) as session,
        pytest.raises(RuntimeError, match="data-dependent"),
    ):
        session.forward(inputs(name, 5))


def differing(out: Tensor, reference: Tensor) -> float:
    """Share of elements that are not bit for bit the same."""
    return (out != reference).double().mean().item()


ORDERS = ("qwen3_vl:payload_into_mlp", "qwen3_vl:payload_into_residual")


@pytest.mark.parametrize("name", ORDERS)
@pytest.mark.parametrize("tokens", [1, 16, 64])
def test_another_order_of_additions_shows_in_half_precision_only(name: str, tokens: int) -> None:
    given = inputs("qwen3_vl", tokens)
    exact = [run(build(one), given, given.payload) for one in (name, "qwen3_vl")]
    assert_close(exact[0], exact[1], atol=1e-5, rtol=0)
    half = cast(given, torch.bfloat16)
    rounded = [run(build(one, torch.bfloat16), half, half.payload) for one in (name, "qwen3_vl")]
    assert differing(*rounded) > 0.5


@pytest.mark.slow  # 12 s for a statement about torch, not about us
@INDUCTOR
def test_inductor_can_round_as_eager_does() -> None:
    # `emulate_precision_casts` is not enough: a pattern makes one addmm of each product and the
    # addition behind it, and rounds once instead of twice (torch 2.13, CPU).
    options: dict[str, Any] = {"emulate_precision_casts": True, "pattern_matcher": False}
    family = Qwen3VLFamily(Qwen3VLConfig(layers=1, levels=1))
    decoder = family.build(dtype=torch.bfloat16, device=CPU, seed=0)
    torch.compiler.reset()
    compiled = torch.compile(decoder, fullgraph=True, dynamic=True, backend="inductor", options=options)
    shares = []
    for tokens in (16, 2, 33, 64):
        given = cast(inputs("qwen3_vl", tokens, levels=1), torch.bfloat16)
        out = compiled(given.hidden, given.positions, given.payload)
        shares.append(differing(out, run(decoder, given, given.payload)))
    # Sums are taken in another order, which now and then tips one rounding.
    assert shares.count(0) >= 3
