"""Sizes of a decoder, and the named variants of them.  No torch."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from deepstack_harness.errors import UsageError

AttentionKind = Literal["sdpa", "written_out", "opaque"]


@dataclass(frozen=True)
class DecoderConfig(ABC):
    """What every family has; the defaults are tiny.

    Raises `UsageError` for sizes that do not go together.
    """

    hidden: int = 128
    mlp: int = 256
    layers: int = 4
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    theta: float = 1e4
    eps: float = 1e-6
    attention: AttentionKind = "sdpa"

    @property
    @abstractmethod
    def levels(self) -> int:
        """Levels of the payload."""

    def __post_init__(self) -> None:
        """Refuse what no decoder can be made of."""
        if self.attention not in get_args(AttentionKind):
            known = ", ".join(get_args(AttentionKind))
            raise UsageError(f"unknown attention '{self.attention}'; known are {known}")
        if self.heads % self.kv_heads:
            raise UsageError(f"{self.heads} heads are no multiple of {self.kv_heads} key/value heads")


@dataclass(frozen=True)
class Variant:
    """One line that describes a variant, and the fields of the config that it sets."""

    summary: str
    changes: Mapping[str, object]


ATTENTION_VARIANTS: Mapping[str, Variant] = {
    "written_out": Variant(
        "attention operation by operation, so that sizes may be unbacked", {"attention": "written_out"}
    ),
    "opaque": Variant(
        "attention in an opaque op, as in engines, which counts the rows it is given", {"attention": "opaque"}
    ),
}
