"""Named variants of the families, and the fields of the config that each of them sets. No torch.

A variant is named as `FAMILY:VARIANT`, several with plus signs between (`qwen3_vl:opaque+2b`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from deepstack_harness.catalogue.registry import FAMILIES
from deepstack_harness.errors import unknown_name


def check_family(text: str) -> None:
    """Raise `UsageError` for an unknown `FAMILY` or `FAMILY:VARIANT+VARIANT`.

    The variants of another package's family are known only after its import, and are not checked.
    """
    base, _, variants = text.partition(":")
    if base not in FAMILIES:
        raise unknown_name("family", base, FAMILIES)
    for variant in variants.split("+") if variants and base in VARIANTS else ():
        if variant not in VARIANTS[base]:
            raise unknown_name(f"variant of family '{base}'", variant, VARIANTS[base])


@dataclass(frozen=True)
class Variant:
    """One line that describes a variant, and the fields of the config that it sets."""

    summary: str
    changes: Mapping[str, object]


_ATTENTION = {
    "written_out": Variant(
        "attention operation by operation, so that sizes may be unbacked", {"attention": "written_out"}
    ),
    "opaque": Variant(
        "attention in an opaque op, as in engines, which counts the rows it is given", {"attention": "opaque"}
    ),
}


def _sizes_of(model: str, layers: int, *, hidden: int, mlp: int, heads: int) -> Variant:
    """Return the sizes of a released Qwen3-VL, cut to 4 of its layers."""
    return Variant(
        f"the sizes of Qwen3-VL-{model}, 4 layers of {layers}",
        {
            "hidden": hidden, "mlp": mlp, "heads": heads, "kv_heads": 8, "head_dim": 128,
            "sections": (24, 20, 20),
        },
    )  # fmt: skip


VARIANTS: Mapping[str, Mapping[str, Variant]] = MappingProxyType(
    {
        "qwen3_vl": {
            **_ATTENTION,
            "payload_into_mlp": Variant(
                "payload added to the feed-forward's answer first, as vLLM and sglang do",
                {"order": "into_mlp"},
            ),
            "payload_into_residual": Variant(
                "payload added before the feed-forward's answer", {"order": "into_residual"}
            ),
            "2b": _sizes_of("2B", 28, hidden=2048, mlp=6144, heads=16),
            "4b": _sizes_of("4B", 36, hidden=2560, mlp=9728, heads=32),
            "8b": _sizes_of("8B", 36, hidden=4096, mlp=12288, heads=32),
            "32b": _sizes_of("32B", 64, hidden=5120, mlp=25600, heads=64),
        },
        "qwen3_omni_moe_thinker": {
            **_ATTENTION,
            "30b_a3b": Variant(
                "the sizes of Qwen3-Omni-30B-A3B, 3 layers of 48, 1.9 billion weights",
                {
                    "hidden": 2048, "mlp": 768, "heads": 32, "kv_heads": 4, "head_dim": 128,
                    "sections": (24, 20, 20), "experts": 128, "top_k": 8, "layers": 3,
                },
            ),
        },
        "granite4_vision": {
            **_ATTENTION,
            "hidden_first": Variant(
                "reads the size of the hidden states first, as vLLM does (the default)", {"first": "hidden"}
            ),
            "payload_first": Variant("reads the size of the payload first", {"first": "payload"}),
        },
        "gemma4": dict(_ATTENTION),
    }
)  # fmt: skip
"""Variants by the name of their family."""
