"""Every family against transformers, eager and compiled, against its controls and seeds, and by its names."""

from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from cases.selftest.models.transformers_models import (
    COUNTS,
    CPU,
    NAMES,
    VISUAL,
    ask,
    build,
    cast,
    inputs,
    loaded,
    oracle,
    run,
    tiny,
    visual_tokens,
)
from deepstack_harness.catalogue.registry import FAMILIES, family_named
from deepstack_harness.compile.captured import open_arm
from deepstack_harness.compile.torch_compat import dynamo
from deepstack_harness.contract.arm import ArmSpec
from deepstack_harness.contract.names import Names, imported
from deepstack_harness.contract.protocols import Inputs, Profile, Session
from deepstack_harness.errors import UsageError
from deepstack_harness.models.family import tiny_family_named
from deepstack_harness.models.granite4_vision import Granite4VisionConfig
from deepstack_harness.models.layers import DecoderConfig
from deepstack_harness.models.qwen3_omni_moe_thinker import Qwen3OmniMoeThinkerConfig
from deepstack_harness.models.qwen3_vl import Qwen3VLConfig, Qwen3VLFamily
from deepstack_harness.models.variants import VARIANTS
from deepstack_harness.play.model import distance

KINDS = ("", ":written_out", ":opaque")


HALVES = (torch.bfloat16, torch.float16)


@pytest.mark.parametrize("tokens", COUNTS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NAMES)
def test_equals_transformers(name: str, kind: str, tokens: int) -> None:
    visual = visual_tokens(tokens)
    batch = inputs(name, tokens, visual=visual)
    assert_close(run(loaded(name + kind), batch, batch.payload), ask(name, batch, visual), atol=1e-5, rtol=0)


@pytest.mark.parametrize("levels", [0, 1, 2, 4])
@pytest.mark.parametrize("name", VISUAL)
def test_adds_the_levels_it_is_given(name: str, levels: int) -> None:
    visual = visual_tokens(17)
    batch = inputs(name, 17, levels, visual)
    assert_close(run(loaded(name), batch, batch.payload), ask(name, batch, visual), atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", VISUAL)
def test_without_a_payload_equals_transformers_without_one(name: str) -> None:
    batch = inputs(name, 17)
    assert_close(run(loaded(name), batch, None), ask(name, batch, None), atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", NAMES)
def test_loading_stays_strict(name: str) -> None:
    state = oracle(name).state_dict()
    assert "embed_tokens.weight" in state
    state["layers.0.self_attn.q_proj.bias"] = state["norm.weight"]
    del state["layers.3.input_layernorm.weight"]
    with pytest.raises(
        RuntimeError, match=r"(?s)Missing .*3\.input_layernorm.*Unexpected .*0\.self_attn\.q_proj\.bias"
    ):
        build(name).load_state_dict(state)


@pytest.mark.parametrize("tokens", COUNTS)
@pytest.mark.parametrize("name", NAMES)
def test_a_payload_shows_in_the_output(name: str, tokens: int) -> None:
    batch = inputs(name, tokens)
    assert batch.payload is not None
    zeros = [torch.zeros_like(level) for level in batch.payload]
    for decoder in (build(name, seed=seed) for seed in (0, 1, 2)):
        assert distance(run(decoder, batch, batch.payload), run(decoder, batch, zeros)) > 0.5


@pytest.mark.parametrize("name", NAMES)
def test_the_order_of_the_levels_shows_in_the_output(name: str) -> None:
    batch = inputs(name, 17)
    assert batch.payload is not None
    for decoder in (build(name, seed=seed) for seed in (0, 1, 2)):
        swapped = run(decoder, batch, batch.payload[::-1])
        assert distance(run(decoder, batch, batch.payload), swapped) > 0.5


@pytest.mark.parametrize("name", NAMES)
def test_every_level_of_one_row_shows_in_later_rows(name: str) -> None:
    batch, decoder = inputs(name, 17), build(name)
    assert batch.payload is not None
    full = run(decoder, batch, batch.payload)
    for level in range(family_named(name).levels - 1):  # Granite's last one enters before its last layer
        changed = [rows.clone() for rows in batch.payload]
        changed[level][0] = 0
        # A hundred times what compiled may differ, and Gemma's levels are spread over one layer more.
        least = 0.001 if name == "gemma4" else 0.01
        assert distance(full[-1], run(decoder, batch, changed)[-1]) > least


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NAMES)
def test_no_tokens_give_no_rows(name: str, kind: str) -> None:
    batch = inputs(name, 0)
    assert run(build(name + kind), batch, batch.payload).shape == (0, family_named(name).hidden)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NAMES)
def test_half_precision_stays_near_fp32(name: str, kind: str, dtype: torch.dtype) -> None:
    batch = cast(inputs(name, 17), dtype)
    exact = cast(batch, torch.float32)
    out = run(build(name + kind, dtype), batch, batch.payload)
    assert out.dtype == dtype
    # Where a rounded router chooses another expert, a few rows are far off: the mean decides.
    off = (out.float() - run(build(name), exact, exact.payload)).abs().mean().item()
    assert off < (0.05 if dtype == torch.bfloat16 else 0.01)


@pytest.mark.parametrize("name", NAMES)
def test_fp64_is_fp64_throughout(name: str) -> None:
    batch = cast(inputs(name, 17), torch.float64)
    outs = [run(build(name + kind, torch.float64), batch, batch.payload) for kind in KINDS]
    assert_close(outs[1], outs[0], atol=1e-13, rtol=0)
    assert_close(outs[2], outs[0], atol=1e-13, rtol=0)


@pytest.mark.parametrize("name", NAMES)
def test_equal_seeds_give_equal_weights(name: str) -> None:
    weights, same, other = (build(name, seed=seed).state_dict() for seed in (7, 7, 8))
    assert all(torch.equal(weights[key], same[key]) for key in weights)
    assert not any(torch.equal(weights[key], other[key]) for key in weights)


@pytest.mark.parametrize("name", NAMES)
def test_weights_are_drawn_in_fp32_and_rounded_once(name: str) -> None:
    exact, rounded = build(name).state_dict(), build(name, torch.bfloat16).state_dict()
    assert all(torch.equal(exact[key].bfloat16(), rounded[key]) for key in exact)


@pytest.mark.parametrize("name", NAMES)
def test_building_does_not_change_the_callers_random_numbers(name: str) -> None:
    before = torch.get_rng_state()
    build(name)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("name", NAMES)
def test_a_decoder_is_for_inference(name: str) -> None:
    decoder = build(name)
    assert not any(module.training for module in decoder.modules())
    assert not any(parameter.requires_grad for parameter in decoder.parameters())


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NAMES)
def test_a_device_changes_only_rounding(name: str, kind: str) -> None:
    batch, cuda = inputs(name, 17), torch.device("cuda")
    assert batch.payload is not None
    decoder = family_named(name + kind).build(dtype=torch.float32, device=cuda, seed=0)
    positions = family_named(name).positions(17, cuda)
    out = decoder(batch.hidden.to(cuda), positions, tuple(level.to(cuda) for level in batch.payload))
    assert_close(out.to(CPU), run(build(name), batch, batch.payload), atol=1e-4, rtol=0)


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
@pytest.mark.slow  # 7 s
def test_one_graph_traced_at_16_equals_transformers_at_every_count(arm: str, name: str, kind: str) -> None:
    with closing(opened(arm, name, loaded(name + kind))) as session:
        session.forward(inputs(name, 16))
        for tokens in COUNTS:
            visual = visual_tokens(tokens)
            batch = inputs(name, tokens, visual=visual)
            assert_close(session.forward(batch), ask(name, batch, visual), atol=1e-5, rtol=0)
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
@pytest.mark.slow  # 3 s
def test_unbacked_sizes_make_one_graph_for_0_and_1_as_well(backend: str, name: str) -> None:
    decoder = build(name)
    with closing(opened(f"{backend}/drop_all/mark_unbacked", name, decoder)) as session:
        for tokens in (5, 9, 2, 1, 0):
            batch = inputs(name, tokens)
            assert_close(session.forward(batch), run(decoder, batch, batch.payload), atol=1e-5, rtol=0)
        assert dynamo.graphs_built() == 1


@AOT_EAGER
@pytest.mark.slow  # 3 s
def test_unbacked_sizes_that_differ_raise() -> None:
    name = "qwen3_vl:opaque"
    with closing(opened("eager/drop_all/mark_unbacked", name, build(name))) as session:
        long, short = inputs(name, 5), inputs(name, 4)
        session.forward(long)
        with pytest.raises(RuntimeError, match=r"Eq\(u\d, u\d\)"):
            session.forward(Inputs(short.hidden, long.positions, long.payload))


@AOT_EAGER
def test_granite_guards_on_its_sizes_and_so_takes_no_unbacked_ones() -> None:
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
    batch = inputs("qwen3_vl", tokens)
    exact = [run(build(weights), batch, batch.payload) for weights in (name, "qwen3_vl")]
    assert_close(exact[0], exact[1], atol=1e-5, rtol=0)
    half = cast(batch, torch.bfloat16)
    rounded = [run(build(weights, torch.bfloat16), half, half.payload) for weights in (name, "qwen3_vl")]
    assert differing(*rounded) > 0.5


@pytest.mark.slow  # 12 s for a statement about torch, not about us
@INDUCTOR
def test_inductor_can_round_as_eager_does() -> None:
    # `emulate_precision_casts` is not enough: a pattern makes one addmm of each product and the
    # addition after it, and rounds once instead of twice (torch 2.13, CPU).
    options: dict[str, Any] = {"emulate_precision_casts": True, "pattern_matcher": False}
    family = Qwen3VLFamily(Qwen3VLConfig(layers=1, levels=1))
    decoder = family.build(dtype=torch.bfloat16, device=CPU, seed=0)
    torch.compiler.reset()
    compiled = torch.compile(decoder, fullgraph=True, dynamic=True, backend="inductor", options=options)
    shares = []
    for tokens in (16, 2, 33, 64):
        batch = cast(inputs("qwen3_vl", tokens, levels=1), torch.bfloat16)
        out = compiled(batch.hidden, batch.positions, batch.payload)
        shares.append(differing(out, run(decoder, batch, batch.payload)))
    # Sums are taken in another order, which now and then tips one rounding.
    assert shares.count(0) >= 3


# Values of the released models' configurations (hidden, mlp, heads, kv_heads, head_dim, sections).
RELEASED = {
    "qwen3_vl:2b": (2048, 6144, 16, 8, 128, (24, 20, 20)),
    "qwen3_omni_moe_thinker:30b_a3b": (2048, 768, 32, 4, 128, (24, 20, 20)),
}


EVERY = [f"{name}:{variant}" for name in NAMES for variant in VARIANTS[name]]


def test_the_registry_lists_every_family() -> None:
    assert tuple(FAMILIES) == tuple(VARIANTS) == NAMES


@pytest.mark.parametrize(
    ("name", "levels", "routed"),
    [
        ("qwen3_vl", 3, False),
        ("qwen3_omni_moe_thinker", 3, True),
        ("granite4_vision", 4, False),
        ("gemma4", 4, False),
    ],
)
def test_a_plain_name_is_the_registered_family(name: str, levels: int, routed: bool) -> None:
    family = family_named(name)
    assert family is imported(FAMILIES[name].target)
    assert (family.name, family.hidden, family.levels, family.routed) == (name, 128, levels, routed)


@pytest.mark.parametrize("text", EVERY)
def test_a_variant_sets_what_it_declares_and_nothing_else(text: str) -> None:
    name, _, variant = text.partition(":")
    family, base = tiny(text), tiny(name)
    changes = base.variants[variant].changes
    assert family.name == text
    assert family.routed == base.routed
    assert (family.hidden, family.levels) == (family.config.hidden, family.config.levels)
    for field, value in vars(base.config).items():
        assert getattr(family.config, field) == changes.get(field, value)
    assert changes


@pytest.mark.parametrize("text", EVERY)
def test_every_variant_but_the_default_is_another_decoder(text: str) -> None:
    name, _, variant = text.partition(":")
    assert (tiny(text).config == tiny(name).config) == (variant == "hidden_first")


@pytest.mark.parametrize("order", ["payload_first+opaque", "opaque+payload_first"])
def test_variants_add_up(order: str) -> None:
    family = tiny(f"granite4_vision:{order}")
    assert family.name == f"granite4_vision:{order}"
    assert (family.config.first, family.config.attention) == ("payload", "opaque")


def test_a_variant_does_not_change_the_registered_family() -> None:
    family_named("qwen3_vl:2b+opaque")
    assert tiny("qwen3_vl").config == Qwen3VLConfig()


@pytest.mark.parametrize("text", RELEASED)
def test_real_sizes_are_the_released_ones(text: str) -> None:
    c = tiny(text).config
    assert (c.hidden, c.mlp, c.heads, c.kv_heads, c.head_dim, c.sections) == RELEASED[text]
    assert c.layers >= c.levels == 3
    with torch.device("meta"):
        tiny(text).decoder()


def test_experts_of_the_released_model() -> None:
    config = tiny("qwen3_omni_moe_thinker:30b_a3b").config
    assert (config.experts, config.top_k) == (128, 8)


@pytest.mark.slow  # half a billion weights are drawn
def test_the_real_size_of_qwen3_vl_can_be_built_and_run() -> None:
    family = family_named("qwen3_vl:2b")
    decoder = family.build(dtype=torch.bfloat16, device=CPU, seed=0)
    hidden, *payload = torch.zeros(1 + family.levels, 2, family.hidden, dtype=torch.bfloat16)
    assert decoder(hidden, family.positions(2, CPU), tuple(payload)).shape == (2, 2048)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "qwen2_vl",
            "unknown family 'qwen2_vl'; did you mean 'qwen3_vl'. known are qwen3_vl, ",
        ),
        ("qwen2_vl:opaque", "unknown family 'qwen2_vl'"),
        ("", "unknown family ''"),
        ("qwen3_vl:", "unknown variant '' of family 'qwen3_vl'; known are written_out, opaque, payload_into"),
        ("qwen3_vl:opaque+", "unknown variant ''"),
        ("qwen3_vl:payload_first", "unknown variant 'payload_first' of family 'qwen3_vl'"),
        ("granite4_vision:2b", "'2b' of family 'granite4_vision'; known are written_out, .*, payload_first$"),
        (
            "qwen3_vl:opaque+written_out",
            "'opaque.written_out' of family 'qwen3_vl' contradict.* set attention",
        ),
        ("qwen3_vl:opaque+opaque", "'opaque.opaque' .* contradict"),
        ("granite4_vision:hidden_first+payload_first", "contradict: two of them set first"),
    ],
)
def test_names_that_are_wrong_are_quoted(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        family_named(text)


def test_a_family_of_fixed_sizes_has_neither_variants_nor_a_config(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give an object with only the members of `Family`, which another package may declare."""
    members = ("name", "hidden", "levels", "routed", "build", "positions")
    fixed = SimpleNamespace(**{name: getattr(tiny("qwen3_vl"), name) for name in members})
    monkeypatch.setattr(Names, "load", lambda *_: fixed)
    assert family_named("fixed") is fixed
    with pytest.raises(UsageError, match="family 'fixed' has no variants, so there is no 'fixed:opaque'"):
        family_named("fixed:opaque")
    with pytest.raises(UsageError, match="family 'fixed' has fixed sizes: it is not built on TinyFamily"):
        tiny_family_named("fixed")


@pytest.mark.parametrize("config", [Qwen3VLConfig, Qwen3OmniMoeThinkerConfig, Granite4VisionConfig])
@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ({"attention": "flash"}, "'flash'; known are sdpa, written_out, opaque"),
        ({"heads": 3}, "3 heads are not a multiple of 2"),
    ],
)
def test_sizes_that_no_family_can_have_are_refused(
    config: type[DecoderConfig], bad: dict[str, object], says: str
) -> None:
    with pytest.raises(UsageError, match=says):
        config(**bad)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ({"sections": (6, 5, 4)}, r"\(6, 5, 4\) must add up to half of head_dim 32"),
        ({"levels": 5}, "5 levels need as many layers, not 4"),
        ({"order": "first"}, "order of additions 'first'; known are after_layer, into_mlp, into_residual"),
        ({"top_k": 0}, r"top_k 0 must lie in 1\.\.8"),
        ({"top_k": 9}, r"top_k 9 must lie in 1\.\.8"),
    ],
)
def test_sizes_that_do_not_go_together_are_refused(bad: dict[str, object], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        Qwen3OmniMoeThinkerConfig(**bad)  # type: ignore[arg-type]
