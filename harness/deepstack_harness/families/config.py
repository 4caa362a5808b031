"""Sizes of a decoder that every family has.  No torch."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal, get_args

from deepstack_harness.errors import UsageError, unknown_name

AttentionKind = Literal["sdpa", "written_out", "opaque"]


@dataclass(frozen=True)
class DecoderConfig(ABC):
    """Sizes that every family has; the defaults are tiny.

    `mlp` is the width of the feed-forward layer, `theta` the base of the rotary angles, `eps` that of
    the norms.  Making one raises `UsageError` for sizes that do not go together.
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
        """Number of levels of the payload."""

    def __post_init__(self) -> None:
        """Check the sizes; raises `UsageError` for those that no decoder can have."""
        if self.attention not in get_args(AttentionKind):
            raise unknown_name("attention", self.attention, get_args(AttentionKind))
        if self.heads % self.kv_heads:
            raise UsageError(f"{self.heads} heads are not a multiple of {self.kv_heads} key/value heads")
