"""Run the decoder of acme-flow: its own forward, over layers that record what they are given."""

from typing import Any

import torch
from torch import Tensor, nn

from deepstack_harness.engines.argument_parts import ArgumentParts, Hosts
from deepstack_harness.engines.bind import ArgumentEngine, EffectReader, split_levels
from deepstack_harness.engines.calls import ArgumentCalls


class DecoderHost(nn.Module):
    """The base class of the decoder here: it has what the engine's own base and its config would make."""

    layers: Any
    norm: Any


class FlowEngine(ArgumentEngine):
    """One decoder, called step by step; it has no storage between steps."""

    no_graphs = "acme-flow captures no graph"

    def __init__(
        self,
        parts: ArgumentParts,
        _capacity: int,
        hidden: int,
        levels: int,
        *,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """Make the decoder with one layer more than there are levels."""
        self._levels = levels
        self._like = torch.zeros(0, hidden, dtype=dtype, device=device)
        self._reader = EffectReader()
        self._decoder: Any = parts.text(None)
        self._decoder.layers = [self._reader.layer] * (levels + 1)
        self._decoder.norm = self._reader.layer
        self.written: set[str] = set()
        self.captured: set[str] = set()

    def check(self, payload: Tensor) -> None:
        """Take any payload (levels, N, hidden)."""

    def eager(self, tokens: int, payload: Tensor | None) -> tuple[Tensor, ...]:
        """Run a step of P tokens; return what was added, one (P, hidden) per level."""
        self._reader.begin()
        levels = None if payload is None else list(payload)
        self._decoder(self._like.new_zeros(tokens, self._like.size(1)), image_levels=levels)
        return split_levels(self._reader.take(), self._levels)


CALLS = ArgumentCalls(FlowEngine, (DecoderHost,), Hosts(DecoderHost))
