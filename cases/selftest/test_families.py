"""Families against transformers run eagerly, against themselves compiled, and against their seeds."""

import copy
from collections.abc import Sequence
from contextlib import closing

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close
from transformers import Qwen3VLConfig as HFConfig
from transformers import Qwen3VLModel, Qwen3VLTextConfig, Qwen3VLTextModel
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLTextRMSNorm, Qwen3VLTextRotaryEmbedding

from harness.arm import ArmSpec
from harness.errors import UsageError
from harness.families.layers import AttentionKind, InterleavedMRope, RMSNorm, draw_weights
from harness.families.positions import LAYOUT, mrope_positions
from harness.families.qwen3_vl import FAMILY, Qwen3VLConfig, Qwen3VLFamily
from harness.probes.numerics import distance
from harness.protocols import Inputs, Profile
from harness.registry import FAMILIES, resolve
from harness.torch_compat import dynamo

CPU = torch.device("cpu")
CONFIG = Qwen3VLConfig()
COUNTS = (1, 2, 17, 33, 64)
KINDS: tuple[AttentionKind, ...] = ("sdpa", "written_out")
HF_TEXT = Qwen3VLTextConfig(
    vocab_size=8,
    hidden_size=CONFIG.hidden,
    intermediate_size=CONFIG.mlp,
    num_hidden_layers=CONFIG.layers,
    num_attention_heads=CONFIG.heads,
    num_key_value_heads=CONFIG.kv_heads,
    head_dim=CONFIG.head_dim,
    rms_norm_eps=CONFIG.eps,
    rope_parameters={
        "rope_type": "default",
        "rope_theta": CONFIG.theta,
        "mrope_section": list(CONFIG.sections),
        "mrope_interleaved": True,
    },
)


def build(kind: AttentionKind = "sdpa", dtype: torch.dtype = torch.float32, seed: int = 0) -> nn.Module:
    return Qwen3VLFamily(Qwen3VLConfig(attention=kind)).build(dtype=dtype, device=CPU, seed=seed)


def inputs(tokens: int, levels: int = CONFIG.levels, visual: Tensor | None = None) -> Inputs:
    """Normal rows; those of the payload are zero where `visual` (n,) is False."""
    generator = torch.Generator().manual_seed(tokens)
    hidden, *payload = torch.randn(1 + levels, tokens, CONFIG.hidden, generator=generator)
    rows = torch.ones(tokens) if visual is None else visual
    return Inputs(hidden, mrope_positions(tokens, CPU), tuple(level * rows[:, None] for level in payload))


def run(decoder: nn.Module, given: Inputs, payload: Sequence[Tensor] | None) -> Tensor:
    out: Tensor = decoder(given.hidden, given.positions, None if payload is None else tuple(payload))
    return out


@pytest.fixture(scope="module")
def oracle() -> Qwen3VLTextModel:
    model = Qwen3VLTextModel(HF_TEXT)
    model.requires_grad_(requires_grad=False)
    draw_weights(model, seed=1)
    return model


@pytest.fixture(scope="module", params=KINDS)
def loaded(request: pytest.FixtureRequest, oracle: Qwen3VLTextModel) -> nn.Module:
    decoder = build(request.param)
    decoder.load_state_dict(oracle.state_dict(), strict=True)
    return decoder


def ask(oracle: Qwen3VLTextModel, given: Inputs, visual: Tensor | None) -> Tensor:
    """The oracle's answer (n, h); it takes a batch, and of the payload the rows of `visual` (n,) only."""
    sparse = None if visual is None or given.payload is None else [level[visual] for level in given.payload]
    out: Tensor = oracle(
        inputs_embeds=given.hidden[None],
        position_ids=given.positions[:, None],
        visual_pos_masks=None if visual is None else visual[None],
        deepstack_visual_embeds=sparse,
        use_cache=False,
    ).last_hidden_state[0]
    return out


@pytest.mark.parametrize("tokens", COUNTS)
def test_equals_transformers(oracle: Qwen3VLTextModel, loaded: nn.Module, tokens: int) -> None:
    visual = torch.arange(tokens) % 3 != 1
    given = inputs(tokens, visual=visual)
    assert_close(run(loaded, given, given.payload), ask(oracle, given, visual), atol=1e-5, rtol=0)


@pytest.mark.parametrize("levels", [0, 1, 4])
def test_adds_the_levels_it_is_given(oracle: Qwen3VLTextModel, loaded: nn.Module, levels: int) -> None:
    visual = torch.arange(17) % 3 != 1
    given = inputs(17, levels, visual)
    assert_close(run(loaded, given, given.payload), ask(oracle, given, visual), atol=1e-5, rtol=0)


def test_without_a_payload_equals_transformers_without_one(
    oracle: Qwen3VLTextModel, loaded: nn.Module
) -> None:
    given = inputs(17)
    assert_close(run(loaded, given, None), ask(oracle, given, None), atol=1e-5, rtol=0)


def test_loading_stays_strict(oracle: Qwen3VLTextModel) -> None:
    state = oracle.state_dict()
    state["layers.0.self_attn.q_proj.bias"] = state["norm.weight"]
    del state["layers.3.mlp.up_proj.weight"]
    with pytest.raises(
        RuntimeError, match=r"(?s)Missing .*3\.mlp\.up_proj.*Unexpected .*0\.self_attn\.q_proj\.bias"
    ):
        build().load_state_dict(state)


@pytest.mark.parametrize(
    ("arm", "kind"), [("aot_eager/drop_all", "written_out"), ("inductor/drop_all", "sdpa")]
)
def test_one_graph_traced_at_16_serves_every_count(arm: str, kind: AttentionKind) -> None:
    decoder = build(kind)
    profile = Profile(16, CONFIG.hidden, CONFIG.levels, torch.float32, CPU)
    with closing(ArmSpec.parse(arm).open(decoder, profile)) as session:
        session.forward(inputs(16))
        for given in map(inputs, COUNTS):
            eager = run(decoder, given, given.payload)
            assert_close(session.forward(given), eager, atol=1e-4, rtol=0)
        # The fused CPU kernel of sdpa would end the process here (SIGFPE).
        assert session.forward(inputs(0)).shape == (0, CONFIG.hidden)
        assert dynamo.graphs_built() == 1


@pytest.mark.parametrize("tokens", COUNTS)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_payload_shows_in_the_output(seed: int, tokens: int) -> None:
    given, decoder = inputs(tokens), build(seed=seed)
    zeros = [torch.zeros_like(given.hidden)] * CONFIG.levels
    assert distance(run(decoder, given, given.payload), run(decoder, given, zeros)) > 0.5


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_order_of_the_levels_shows_in_the_output(seed: int) -> None:
    given, decoder = inputs(17), build(seed=seed)
    assert given.payload is not None
    swapped = run(decoder, given, given.payload[::-1])
    assert distance(run(decoder, given, given.payload), swapped) > 0.5


@pytest.mark.parametrize("level", range(CONFIG.levels))
def test_every_level_of_one_row_shows_in_later_rows(level: int) -> None:
    given, decoder = inputs(17), build()
    assert given.payload is not None
    changed = [rows.clone() for rows in given.payload]
    changed[level][0] = 0
    outs = [run(decoder, given, payload) for payload in (given.payload, changed)]
    assert distance(outs[0][-1], outs[1][-1]) > 0.01  # a hundred times what compiled may differ


def test_equal_seeds_give_equal_weights() -> None:
    one, same, other = (build(seed=seed).state_dict() for seed in (7, 7, 8))
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not any(torch.equal(one[name], other[name]) for name in one)


def test_weights_are_drawn_in_fp32_and_rounded_once() -> None:
    exact, rounded = build().state_dict(), build(dtype=torch.bfloat16).state_dict()
    assert all(torch.equal(exact[name].bfloat16(), rounded[name]) for name in exact)


def test_building_leaves_the_callers_random_numbers_alone() -> None:
    before = torch.get_rng_state()
    build()
    assert torch.equal(torch.get_rng_state(), before)


def test_a_decoder_is_for_inference() -> None:
    decoder = build()
    assert not decoder.training
    assert not any(parameter.requires_grad for parameter in decoder.parameters())


def test_fp64_is_fp64_throughout() -> None:
    given = inputs(17)
    assert given.payload is not None
    wide = Inputs(given.hidden.double(), given.positions, tuple(level.double() for level in given.payload))
    outs = [run(copy.deepcopy(build(kind)).double(), wide, wide.payload) for kind in KINDS]
    assert_close(outs[0], outs[1], atol=1e-13, rtol=0)


def test_norm_in_bf16_rounds_as_transformers_does() -> None:
    generator = torch.Generator().manual_seed(0)
    x, weight = torch.randn(2, 64, 32, generator=generator).bfloat16()
    ours, theirs = RMSNorm(32, 1e-6).bfloat16(), Qwen3VLTextRMSNorm(32, 1e-6).bfloat16()
    for norm in (ours, theirs):
        norm.load_state_dict({"weight": weight[0]})
    assert torch.equal(ours(x), theirs(x))


def test_norm_in_fp64_is_exact() -> None:
    x = torch.randn(64, 32, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert_close(
        RMSNorm(32, 1e-6).double()(x), nn.functional.rms_norm(x, (32,), eps=1e-6), atol=1e-14, rtol=0
    )


@pytest.mark.parametrize(("dtype", "step"), [(torch.float32, 1e-6), (torch.bfloat16, 2**-8)])
def test_angles_at_released_sizes_equal_transformers(dtype: torch.dtype, step: float) -> None:
    # Far positions: the last lanes turn by less than 1e-6 for each.
    positions = 1000 * mrope_positions(64, CPU)
    config = Qwen3VLTextConfig(head_dim=128, rope_parameters={"rope_type": "default", "rope_theta": 5e6})
    theirs = Qwen3VLTextRotaryEmbedding(config)(torch.empty(0, dtype=dtype), positions[:, None])
    rope = InterleavedMRope(128, (24, 20, 20), 5e6).to(dtype)
    for ours, other in zip(rope(positions, dtype), theirs, strict=True):
        assert_close(ours[:, 0], other[0], atol=step, rtol=0)


def test_angles_in_fp64_are_exact() -> None:
    rope = InterleavedMRope(CONFIG.head_dim, CONFIG.sections, CONFIG.theta)
    cos, sin = rope(mrope_positions(64, CPU), torch.float64)
    assert_close(cos.square() + sin.square(), torch.ones_like(cos), atol=1e-15, rtol=0)


def test_positions_are_those_of_transformers() -> None:
    kinds = [kind for text, (h, w) in LAYOUT * 2 for kind in [0] * text + [1] * (h * w)]
    grids = [(1, 2 * h, 2 * w) for _, (h, w) in LAYOUT * 2]  # in patches, before merging 2 x 2
    with torch.device("meta"):
        model = Qwen3VLModel(HFConfig(text_config=HF_TEXT.to_dict(), vision_config={"depth": 1}))
    ids, types = torch.LongTensor([[0] * len(kinds)]), torch.IntTensor([kinds])
    theirs, _ = model.get_rope_index(ids, types, image_grid_thw=torch.LongTensor(grids))
    assert torch.equal(mrope_positions(len(kinds), CPU), theirs[:, 0])


@pytest.mark.parametrize("tokens", [0, *COUNTS])
def test_fewer_positions_are_the_start_of_more(tokens: int) -> None:
    positions = mrope_positions(tokens, CPU)
    assert positions.shape == (3, tokens)
    assert positions.dtype == torch.int64
    assert torch.equal(positions, FAMILY.positions(100, CPU)[:, :tokens])


def test_16_positions_tell_the_axes_apart() -> None:
    time, height, width = mrope_positions(16, CPU)
    assert all((one != other).any() for one, other in ((time, height), (time, width), (height, width)))


def test_a_negative_count_of_positions_is_refused() -> None:
    with pytest.raises(UsageError, match="-1 tokens"):
        mrope_positions(-1, CPU)


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ({"attention": "flash"}, "'flash'; known are sdpa, written_out"),
        ({"heads": 3}, "3 heads are no multiple of 2"),
        ({"sections": (6, 5, 4)}, r"\(6, 5, 4\) must add up to half of head_dim 32"),
        ({"levels": 5}, "5 levels need as many layers, not 4"),
    ],
)
def test_sizes_that_do_not_go_together_are_refused(bad: dict[str, object], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        Qwen3VLConfig(**bad)  # type: ignore[arg-type]


def test_the_registry_knows_the_family() -> None:
    found = resolve("family", FAMILIES, "qwen3_vl")
    assert found is FAMILY
    assert (FAMILY.name, FAMILY.hidden, FAMILY.levels) == ("qwen3_vl", 128, 3)
