"""Base of the families: decoders of one config, weights drawn from a seed, variants by name."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, Generic, Self, TypeVar

import torch
from torch import Tensor, nn

from deepstack_harness.errors import UsageError
from deepstack_harness.families.config import DecoderConfig
from deepstack_harness.families.layers import draw_weights, give_storage
from deepstack_harness.families.positions import mrope_positions
from deepstack_harness.families.variants import VARIANTS, Variant

ConfigT = TypeVar("ConfigT", bound=DecoderConfig)


class TinyFamily(ABC, Generic[ConfigT]):
    """A `deepstack_harness.contract.protocols.FamilyWithVariants` with a config of its sizes."""

    base: ClassVar[str]
    """The name without variants."""
    routed: bool = False

    @property
    def variants(self) -> Mapping[str, Variant]:
        """Variants of the family by name; empty for one that `families.variants` does not list."""
        return VARIANTS.get(self.base, {})

    def __init__(self, config: ConfigT, name: str | None = None) -> None:
        self.config = config
        self.name = name or self.base
        self.hidden = config.hidden
        self.levels = config.levels

    @abstractmethod
    def decoder(self) -> nn.Module:
        """Make a `deepstack_harness.contract.protocols.Decoder` of the config; weights are drawn later."""

    def build(self, *, dtype: torch.dtype, device: torch.device, seed: int) -> nn.Module:
        """Make a decoder in eval mode, without gradients; equal seeds give equal weights on every device."""
        with torch.device("meta"):
            decoder = self.decoder()
        give_storage(decoder, dtype, device)
        draw_weights(decoder, seed)
        return decoder.eval()

    def positions(self, tokens: int, device: torch.device) -> Tensor:
        """Return positions (3, tokens) int64 of a text with images."""
        return mrope_positions(tokens, device)

    def variant(self, text: str) -> Self:
        """Return the family with the variants of `text` (`opaque+2b`), under the name `BASE:TEXT`.

        Raises `UsageError` for an unknown variant, for two that set the same field, and for sizes
        that do not go together.
        """
        changes: dict[str, Any] = {}
        for name in text.split("+"):
            self._merge(changes, name, text)
        return type(self)(replace(self.config, **changes), f"{self.base}:{text}")

    def _merge(self, changes: dict[str, Any], name: str, text: str) -> None:
        if name not in self.variants:
            known = ", ".join(self.variants)
            raise UsageError(f"unknown variant '{name}' of family '{self.base}'; known are {known}")
        for field, value in self.variants[name].changes.items():
            if field in changes:
                raise UsageError(
                    f"variants '{text}' of family '{self.base}' contradict: two of them set {field}"
                )
            changes[field] = value


def drop_embeddings(_module: nn.Module, state: dict[str, Any], prefix: str, *_: object) -> None:
    """Remove the token embedding from a state dict before it is loaded: decoders start from embeddings.

    This is a pre-hook of `torch.nn.Module.load_state_dict`.
    """
    state.pop(f"{prefix}embed_tokens.weight", None)
