"""Families of tiny decoders: a config of sizes, weights drawn from a seed, variants by name.

`tiny_family_named` loads `FAMILY`, or `FAMILY:VARIANT` with more variants after plus signs. `parse_dtype`
and `parse_device` turn the names that users write into torch's own.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar, cast

import torch
from torch import Tensor, nn

from deepstack_harness.catalogue.registry import family_named
from deepstack_harness.contract.case import check_device, check_dtype
from deepstack_harness.contract.rules import PayloadKind
from deepstack_harness.contract.trace import BUFFER_INTEGERS, DTYPES
from deepstack_harness.errors import MachineError, UsageError
from deepstack_harness.models.layers import DecoderConfig, draw_weights, give_storage, mrope_positions
from deepstack_harness.models.variants import VARIANTS, Variant

ConfigT = TypeVar("ConfigT", bound=DecoderConfig)


class TinyFamily(ABC, Generic[ConfigT]):
    """A `deepstack_harness.contract.protocols.FamilyWithVariants` with a config of its sizes."""

    base: ClassVar[str]
    """The name without variants."""
    routed: bool = False
    payload_kind: ClassVar[PayloadKind] = PayloadKind.VISUAL

    @property
    def variants(self) -> Mapping[str, Variant]:
        """Variants of the family by name; empty for one that `families.variants` does not list."""
        return VARIANTS.get(self.base, {})

    def __init__(self, config: ConfigT, name: str | None = None) -> None:
        self.config = config
        self.name = name or self.base
        self.hidden = config.hidden
        self.levels = config.levels

    @property
    def width(self) -> int:
        """Columns of a level of the payload; most families add levels as wide as the hidden states."""
        return self.hidden

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
            if name not in self.variants:
                names = ", ".join(self.variants)
                raise UsageError(f"unknown variant '{name}' of family '{self.base}'; known are {names}")
            for field, value in self.variants[name].changes.items():
                if field in changes:
                    raise UsageError(
                        f"variants '{text}' of family '{self.base}' contradict: two of them set {field}"
                    )
                changes[field] = value
        return type(self)(replace(self.config, **changes), f"{self.base}:{text}")


def drop_embeddings(_module: nn.Module, state: dict[str, Any], prefix: str, *_: object) -> None:
    """Remove embeddings, of tokens and of Gemma's levels, from a state dict before it is loaded.

    This is a pre-hook of `torch.nn.Module.load_state_dict`: decoders start from embedded tokens.
    """
    for name in ("embed_tokens", "embed_tokens_per_layer"):
        state.pop(f"{prefix}{name}.weight", None)


if TYPE_CHECKING:
    # The config of a family is known only after its name was looked up.
    AnyTinyFamily = TinyFamily[Any]


def tiny_family_named(text: str) -> "AnyTinyFamily":
    """Return the family as `family_named` does; raises `UsageError` also for one without a config."""
    family = family_named(text)
    if not isinstance(family, TinyFamily):
        raise UsageError(f"family '{text}' has fixed sizes: it is not built on {TinyFamily.__qualname__}")
    return family


_TORCH_DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in DTYPES}


def parse_dtype(name: str) -> torch.dtype:
    """Return the dtype of a name such as `float32`; raise `UsageError` with the known names."""
    check_dtype(name)
    return _TORCH_DTYPES[name]


def parse_buffer_dtype(name: str) -> torch.dtype:
    """Return the dtype of a name such as `float32` or, for rows of integers, `int64`; raise `UsageError`."""
    return cast(torch.dtype, getattr(torch, name)) if name in BUFFER_INTEGERS else parse_dtype(name)


def parse_device(name: str) -> torch.device:
    """Return the device of `cpu`, `cuda` or `cuda:1`.

    Raises `UsageError` for a bad name, `MachineError` where there is no such device.
    """
    check_device(name)
    device = torch.device(name)
    count = torch.cuda.device_count()
    if device.type == "cuda" and (device.index or 0) >= count:
        raise MachineError(
            f"device '{name}' is not available: torch {torch.__version__} sees {count} GPUs; use cpu"
        )
    # The device of a tensor always has an index: 'cuda' without one would never be equal to it.
    return torch.device("cuda", device.index or 0) if device.type == "cuda" else device
