"""Transformers' own text models for comparison with our families, small, with random weights, run eagerly."""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    Gemma4TextConfig,
    Gemma4TextModel,
    Granite4VisionTextConfig,
    Granite4VisionTextModel,
    PretrainedConfig,
    Qwen3VLTextConfig,
    Qwen3VLTextModel,
)
from transformers.models.qwen3_omni_moe.configuration_qwen3_omni_moe import Qwen3OmniMoeTextConfig
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import Qwen3OmniMoeThinkerTextModel

from deepstack_harness.catalogue.registry import family_named
from deepstack_harness.contract.protocols import Inputs, payload_width
from deepstack_harness.models.family import TinyFamily
from deepstack_harness.models.gemma4 import Gemma4Config
from deepstack_harness.models.granite4_vision import Granite4VisionConfig
from deepstack_harness.models.layers import DecoderConfig, draw_weights
from deepstack_harness.models.qwen3_omni_moe_thinker import Qwen3OmniMoeThinkerConfig
from deepstack_harness.models.qwen3_vl import Qwen3VLConfig

CPU = torch.device("cpu")
COUNTS = (1, 2, 17, 33, 64, 257)
NAMES = ("qwen3_vl", "qwen3_omni_moe_thinker", "granite4_vision", "gemma4")
VISUAL = NAMES[:3]
"""Families whose payload has rows only of visual tokens."""
EMBEDDING_MULTIPLIER = 8.0  # released: 12; this one undoes itself without rounding


def tiny(name: str) -> TinyFamily[Any]:
    """The family of that name, as its own class."""
    family = family_named(name)
    assert isinstance(family, TinyFamily)
    return family


def build(name: str, dtype: torch.dtype = torch.float32, seed: int = 0) -> nn.Module:
    return family_named(name).build(dtype=dtype, device=CPU, seed=seed)


def inputs(name: str, tokens: int, levels: int | None = None, visual: Tensor | None = None) -> Inputs:
    """Normal rows; those of the payload are zero where `visual` (n,) is False."""
    family = family_named(name)
    generator = torch.Generator().manual_seed(tokens)
    count = family.levels if levels is None else levels
    hidden = torch.randn(tokens, family.hidden, generator=generator)
    payload = torch.randn(count, tokens, payload_width(family), generator=generator)
    rows = torch.ones(tokens) if visual is None else visual
    return Inputs(hidden, family.positions(tokens, CPU), tuple(level * rows[:, None] for level in payload))


def cast(batch: Inputs, dtype: torch.dtype) -> Inputs:
    assert batch.payload is not None
    return Inputs(batch.hidden.to(dtype), batch.positions, tuple(level.to(dtype) for level in batch.payload))


def run(decoder: nn.Module, batch: Inputs, payload: Sequence[Tensor] | None) -> Tensor:
    out: Tensor = decoder(batch.hidden, batch.positions, None if payload is None else tuple(payload))
    return out


def visual_tokens(tokens: int) -> Tensor:
    """Every third token, from the second on, is text."""
    return torch.arange(tokens) % 3 != 1


@cache
def oracle(name: str) -> nn.Module:
    """Transformers' model in the sizes of the family `name`, drawn from a seed."""
    model: nn.Module = _MAKERS[name](tiny(name).config)
    model.requires_grad_(requires_grad=False)
    draw_weights(model, seed=1)
    return model.eval()


def loaded(name: str) -> nn.Module:
    """Our decoder with the oracle's weights; which is the part of `name` before `:`."""
    decoder = build(name)
    decoder.load_state_dict(oracle(name.partition(":")[0]).state_dict(), strict=True)
    return decoder


def ask(name: str, batch: Inputs, visual: Tensor | None) -> Tensor:
    """The oracle's output (n, h); it takes a batch, and of the payload the rows of `visual` (n,) only."""
    sparse = None
    if visual is not None and batch.payload is not None:
        sparse = [level[visual] for level in batch.payload]
    arguments = {"granite4_vision": _granite, "gemma4": _gemma}.get(name, _qwen)(batch, sparse, visual)
    out: Tensor = oracle(name)(use_cache=False, **arguments).last_hidden_state[0]
    return out


def _gemma(batch: Inputs, _sparse: object, visual: Tensor | None) -> Mapping[str, object]:
    """Hand over all rows: a payload of every token has no mask; transformers looks up one that is None."""
    rows = () if visual is None else batch.payload or ()
    none = torch.zeros(1, len(batch.hidden), len(rows) or _levels("gemma4"), tiny("gemma4").config.width)
    return {
        "inputs_embeds": batch.hidden[None],
        "position_ids": batch.positions[:1],
        "per_layer_inputs": torch.stack(rows, dim=1)[None] if rows else none,
    }


def _levels(name: str) -> int:
    return tiny(name).levels


def _qwen(batch: Inputs, sparse: list[Tensor] | None, visual: Tensor | None) -> Mapping[str, object]:
    return {
        "inputs_embeds": batch.hidden[None],
        "position_ids": batch.positions[:, None],
        "visual_pos_masks": None if visual is None else visual[None],
        "deepstack_visual_embeds": sparse,
    }


def _granite(batch: Inputs, sparse: list[Tensor] | None, visual: Tensor | None) -> Mapping[str, object]:
    targets = tiny("granite4_vision").config.targets
    return {
        "inputs_embeds": batch.hidden[None] / EMBEDDING_MULTIPLIER,
        "position_ids": batch.positions[:1],
        "vision_mask": None if visual is None else visual[None, :, None],
        "deepstack_features": None if sparse is None else dict(zip(targets, sparse, strict=False)),
    }


def _sizes(config: DecoderConfig) -> dict[str, Any]:
    return {
        "vocab_size": 8,
        "hidden_size": config.hidden,
        "intermediate_size": config.mlp,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "rms_norm_eps": config.eps,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.theta},
    }


def mrope(config: Qwen3VLConfig) -> dict[str, Any]:
    """`_sizes` with the rotary sections of Qwen3-VL."""
    sizes = _sizes(config)
    sizes["rope_parameters"] |= {"mrope_section": list(config.sections), "mrope_interleaved": True}
    return sizes


def _omni(config: Qwen3OmniMoeThinkerConfig) -> PretrainedConfig:
    made = Qwen3OmniMoeTextConfig(
        **mrope(config),
        moe_intermediate_size=config.mlp,
        num_experts=config.experts,
        num_experts_per_tok=config.top_k,
    )
    made._experts_implementation = "eager"  # a loop over the experts that are hit
    return made


def _granite_config(config: Granite4VisionConfig) -> PretrainedConfig:
    return Granite4VisionTextConfig(
        **_sizes(config),
        embedding_multiplier=EMBEDDING_MULTIPLIER,
        attention_multiplier=config.attention_multiplier,
        residual_multiplier=config.residual_multiplier,
    )


def _gemma_config(config: Gemma4Config) -> PretrainedConfig:
    sizes = _sizes(config)
    sizes["rope_parameters"] = {
        "sliding_attention": {"rope_type": "default", "rope_theta": config.theta},
        "full_attention": {
            "rope_type": "proportional",
            "rope_theta": config.full_theta,
            "partial_rotary_factor": config.partial_rotary_factor,
        },
    }
    layers = range(config.layers)
    return Gemma4TextConfig(
        **sizes,
        layer_types=["full_attention" if config.is_full(layer) else "sliding_attention" for layer in layers],
        global_head_dim=config.head_dim,
        hidden_size_per_layer_input=config.width,
        vocab_size_per_layer_input=8,
    )


def _gemma4(config: Gemma4Config) -> nn.Module:
    """Transformers' model, whose layers have scalars unlike the 1 that they start with."""
    model: nn.Module = Gemma4TextModel(_gemma_config(config))
    for index in range(config.layers):
        model.get_buffer(f"layers.{index}.layer_scalar").fill_(1 + index / 8)
    return model


_MAKERS: dict[str, Callable[[Any], nn.Module]] = {
    "gemma4": _gemma4,
    "qwen3_vl": lambda config: Qwen3VLTextModel(Qwen3VLTextConfig(**mrope(config))),
    "qwen3_omni_moe_thinker": lambda config: Qwen3OmniMoeThinkerTextModel(_omni(config)),
    "granite4_vision": lambda config: Granite4VisionTextModel(_granite_config(config)),
}
