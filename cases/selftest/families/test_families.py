"""Every family against transformers run eagerly, against its controls, and against its seeds."""

import pytest
import torch
from torch.testing import assert_close

from cases.selftest.families.transformers_models import (
    COUNTS,
    CPU,
    NAMES,
    ask,
    build,
    cast,
    inputs,
    loaded,
    oracle,
    run,
    visual_tokens,
)
from deepstack_harness.families.by_name import family_named
from deepstack_harness.probes.numerics import distance

KINDS = ("", ":written_out", ":opaque")
HALVES = (torch.bfloat16, torch.float16)


@pytest.mark.parametrize("tokens", COUNTS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NAMES)
def test_equals_transformers(name: str, kind: str, tokens: int) -> None:
    visual = visual_tokens(tokens)
    given = inputs(name, tokens, visual=visual)
    assert_close(run(loaded(name + kind), given, given.payload), ask(name, given, visual), atol=1e-5, rtol=0)


@pytest.mark.parametrize("levels", [0, 1, 2, 4])
@pytest.mark.parametrize("name", NAMES)
def test_adds_the_levels_it_is_given(name: str, levels: int) -> None:
    visual = visual_tokens(17)
    given = inputs(name, 17, levels, visual)
    assert_close(run(loaded(name), given, given.payload), ask(name, given, visual), atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", NAMES)
def test_without_a_payload_equals_transformers_without_one(name: str) -> None:
    given = inputs(name, 17)
    assert_close(run(loaded(name), given, None), ask(name, given, None), atol=1e-5, rtol=0)


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
    given = inputs(name, tokens)
    assert given.payload is not None
    zeros = [torch.zeros_like(level) for level in given.payload]
    for decoder in (build(name, seed=seed) for seed in (0, 1, 2)):
        assert distance(run(decoder, given, given.payload), run(decoder, given, zeros)) > 0.5


@pytest.mark.parametrize("name", NAMES)
def test_the_order_of_the_levels_shows_in_the_output(name: str) -> None:
    given = inputs(name, 17)
    assert given.payload is not None
    for decoder in (build(name, seed=seed) for seed in (0, 1, 2)):
        swapped = run(decoder, given, given.payload[::-1])
        assert distance(run(decoder, given, given.payload), swapped) > 0.5


@pytest.mark.parametrize("name", NAMES)
def test_every_level_of_one_row_shows_in_later_rows(name: str) -> None:
    given, decoder = inputs(name, 17), build(name)
    assert given.payload is not None
    full = run(decoder, given, given.payload)
    for level in range(family_named(name).levels - 1):  # Granite's last one enters before its last layer
        changed = [rows.clone() for rows in given.payload]
        changed[level][0] = 0
        # A hundred times what compiled may differ.
        assert distance(full[-1], run(decoder, given, changed)[-1]) > 0.01


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NAMES)
def test_no_tokens_give_no_rows(name: str, kind: str) -> None:
    given = inputs(name, 0)
    assert run(build(name + kind), given, given.payload).shape == (0, family_named(name).hidden)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NAMES)
def test_half_precision_stays_near_fp32(name: str, kind: str, dtype: torch.dtype) -> None:
    given = cast(inputs(name, 17), dtype)
    exact = cast(given, torch.float32)
    out = run(build(name + kind, dtype), given, given.payload)
    assert out.dtype == dtype
    # Where a rounded router chooses another expert, a few rows are far off: the mean tells.
    off = (out.float() - run(build(name), exact, exact.payload)).abs().mean().item()
    assert off < (0.05 if dtype == torch.bfloat16 else 0.01)


@pytest.mark.parametrize("name", NAMES)
def test_fp64_is_fp64_throughout(name: str) -> None:
    given = cast(inputs(name, 17), torch.float64)
    outs = [run(build(name + kind, torch.float64), given, given.payload) for kind in KINDS]
    assert_close(outs[1], outs[0], atol=1e-13, rtol=0)
    assert_close(outs[2], outs[0], atol=1e-13, rtol=0)


@pytest.mark.parametrize("name", NAMES)
def test_equal_seeds_give_equal_weights(name: str) -> None:
    one, same, other = (build(name, seed=seed).state_dict() for seed in (7, 7, 8))
    assert all(torch.equal(one[key], same[key]) for key in one)
    assert not any(torch.equal(one[key], other[key]) for key in one)


@pytest.mark.parametrize("name", NAMES)
def test_weights_are_drawn_in_fp32_and_rounded_once(name: str) -> None:
    exact, rounded = build(name).state_dict(), build(name, torch.bfloat16).state_dict()
    assert all(torch.equal(exact[key].bfloat16(), rounded[key]) for key in exact)


@pytest.mark.parametrize("name", NAMES)
def test_building_leaves_the_callers_random_numbers_alone(name: str) -> None:
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
    given, cuda = inputs(name, 17), torch.device("cuda")
    assert given.payload is not None
    decoder = family_named(name + kind).build(dtype=torch.float32, device=cuda, seed=0)
    positions = family_named(name).positions(17, cuda)
    out = decoder(given.hidden.to(cuda), positions, tuple(level.to(cuda) for level in given.payload))
    assert_close(out.to(CPU), run(build(name), given, given.payload), atol=1e-4, rtol=0)
