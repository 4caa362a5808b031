"""Families and variants by name, and configs that are refused."""

from types import SimpleNamespace

import pytest
import torch

from cases.selftest.families.transformers_models import CPU, NAMES, tiny
from deepstack_harness.catalogue.names import Names, imported
from deepstack_harness.catalogue.registry import FAMILIES
from deepstack_harness.errors import UsageError
from deepstack_harness.families.by_name import family_named, tiny_family_named
from deepstack_harness.families.config import DecoderConfig
from deepstack_harness.families.granite4_vision import Granite4VisionConfig
from deepstack_harness.families.qwen3_omni_moe_thinker import Qwen3OmniMoeThinkerConfig
from deepstack_harness.families.qwen3_vl import Qwen3VLConfig
from deepstack_harness.families.variants import VARIANTS

# What the released models' configurations say (hidden, mlp, heads, kv_heads, head_dim, sections).
RELEASED = {
    "qwen3_vl:2b": (2048, 6144, 16, 8, 128, (24, 20, 20)),
    "qwen3_omni_moe_thinker:30b_a3b": (2048, 768, 32, 4, 128, (24, 20, 20)),
}
EVERY = [f"{name}:{variant}" for name in NAMES for variant in VARIANTS[name]]


def test_the_registry_lists_every_family() -> None:
    assert tuple(FAMILIES) == tuple(VARIANTS) == NAMES


@pytest.mark.parametrize(
    ("name", "levels", "routed"),
    [("qwen3_vl", 3, False), ("qwen3_omni_moe_thinker", 3, True), ("granite4_vision", 4, False)],
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


def test_a_variant_leaves_the_registered_family_alone() -> None:
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
    """Give an object with the members of `Family` alone, which another package may declare."""
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
