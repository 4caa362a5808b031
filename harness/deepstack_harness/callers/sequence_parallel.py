"""An engine whose ranks share each step: rank r has the hidden states and the payload of its own rows.

Every rank plays the whole case with a full buffer of its own, and reads all P rows of it.  Only attention
needs all tokens: they are gathered before it and cut again after it.  Norms, feed-forward, experts and the
additions of the payload work on own rows (vLLM's sequence parallelism, `enable_sp`, up to 0.31).
"""

from dataclasses import replace

import torch.distributed as dist
from torch import Tensor, nn
from typing_extensions import override

from deepstack_harness.callers.collectives import ToldToAll, gather_rows, tell_failure
from deepstack_harness.callers.decoder_copies import layers_of, shared_copy
from deepstack_harness.callers.engine import Engine
from deepstack_harness.contract.protocols import Inputs, Lane
from deepstack_harness.contract.trace import Step
from deepstack_harness.errors import NotMeasured, StepUnavailable

Payload = tuple[Tensor, ...]


class GatheredAttention(nn.Module):
    """Attention of a decoder layer over the tokens of all ranks, cut to the rank's own rows."""

    def __init__(self, attention: nn.Module, rank: int, ranks: int) -> None:
        """Wrap `attention`, which takes (P, h) and the rotary angles of P tokens."""
        super().__init__()
        self.attention = attention
        self.rank = rank
        self.ranks = ranks

    @override
    def forward(self, own: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Attend from own rows (P / ranks, h), with cos and sin (P, 1, D) each -> (P / ranks, h)."""
        rows = own.size(0)
        out: Tensor = self.attention(gather_rows(own, self.ranks), cos, sin)
        return out[self.rank * rows : (self.rank + 1) * rows]


class SharedDecoder(nn.Module):
    """Decoder of one rank, which has its own rows of hidden states and payload, and all positions."""

    def __init__(self, decoder: nn.Module, rank: int, ranks: int) -> None:
        """Rebuild a copy of `decoder`, which has `layers`, each with `self_attn`."""
        super().__init__()
        self.decoder = shared_copy(decoder)
        self.ranks = ranks
        for layer in layers_of(self.decoder):
            layer.self_attn = GatheredAttention(layer.get_submodule("self_attn"), rank, ranks)

    @override
    def forward(self, hidden: Tensor, positions: Tensor, payload: Payload | None) -> Tensor:
        """Run all layers: hidden and each level (P / ranks, h), positions (3, P) int64 -> (P, h)."""
        out: Tensor = gather_rows(self.decoder(hidden, positions, payload), self.ranks)
        return out


class SequenceParallel(Engine):
    """Engine on one of the ranks; with a single rank it is the unsharded engine."""

    def __init__(self, ranks: int = 1) -> None:
        """Ask the default process group which rank this process is.

        Raises `NotMeasured` if the group does not have `ranks` ranks.
        """
        here = dist.get_world_size() if dist.is_initialized() else 1
        if here != ranks:
            raise NotMeasured(f"{ranks} ranks should share each step, but the process group has {here}")
        self.ranks = ranks
        self.rank = dist.get_rank() if ranks > 1 else 0

    @override
    def decoder(self, decoder: nn.Module) -> nn.Module:
        """Return the decoder with its attention over all ranks."""
        return decoder if self.ranks == 1 else SharedDecoder(decoder, self.rank, self.ranks)

    @override
    def forward(self, lane: Lane, inputs: Inputs, step: Step) -> Tensor:
        """Get, decode own rows and clear, hidden (P, h) -> the rows of all ranks (P, h)."""
        if self.ranks == 1:
            return super().forward(lane, inputs, step)
        own = self._rows(step.tokens, self.rank)
        try:
            out = lane.run(self._shared(inputs, lane.get(step.tokens), own))
        except Exception as error:
            if not _told(error):
                tell_failure(self.ranks)
            raise
        lane.clear(step.tokens)
        return out

    def payload_rows(self, payload: Payload, own: slice) -> Payload:
        """Cut each level (P, h) to this rank's rows (P / ranks, h); faulty callers cut others."""
        return tuple(level[own] for level in payload)

    def _shared(self, inputs: Inputs, payload: Payload | None, own: slice) -> Inputs:
        rows = None if payload is None else self.payload_rows(payload, own)
        return replace(inputs, hidden=inputs.hidden[own], payload=rows)

    def _rows(self, tokens: int, rank: int) -> slice:
        """Return the rows of a rank; raises `StepUnavailable` for a step that cannot be shared equally."""
        rows, rest = divmod(tokens, self.ranks)
        if rest:
            raise StepUnavailable(
                f"{tokens} tokens cannot be shared by {self.ranks} ranks: pad the step to "
                f"{(rows + 1) * self.ranks}"
            )
        return slice(rank * rows, (rank + 1) * rows)


def _told(error: Exception) -> bool:
    """Return whether the other ranks know already; a lane wraps what its decoder raises."""
    return isinstance(error, ToldToAll) or isinstance(error.__cause__, ToldToAll)
