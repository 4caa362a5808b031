"""Callers whose ranks share the hidden states correctly, but add wrong rows of the payload."""

from torch import Tensor
from typing_extensions import override

from deepstack_harness.callers.sequence_parallel import Payload, SequenceParallel
from deepstack_harness.contract.protocols import Buffer


class PayloadNotSharded(SequenceParallel):
    """An engine whose ranks each add the whole payload (sglang 18098, vllm-ascend 7565 and 7897)."""

    @override
    def payload_rows(self, payload: Payload, own: slice) -> Payload:
        """Return all P rows of each level (P, h)."""
        return payload


class PayloadShardedUnpadded(SequenceParallel):
    """An engine that splits the payload by the N tokens set, and the hidden states by the padded P."""

    _set_tokens: int | None = None

    @override
    def set(self, buffer: Buffer, payload: Tensor) -> None:
        """Set a payload (levels, N, hidden), and remember N."""
        self._set_tokens = payload.size(1)
        super().set(buffer, payload)

    @override
    def payload_rows(self, payload: Payload, own: slice) -> Payload:
        """Return the rank's part of the first N rows of each level (P, h).

        The first ranks have one row more where N does not divide evenly.
        """
        return tuple(level[: self._set_tokens].tensor_split(self.ranks)[self.rank] for level in payload)


class PayloadChunkedUnpadded(PayloadShardedUnpadded):
    """An engine that cuts the N tokens set with `chunk`, whose last part is short or missing (vllm-ascend).

    Ten rows for four ranks are parts of 3, 3, 3 and 1; nine rows for eight ranks are five parts.
    """

    @override
    def payload_rows(self, payload: Payload, own: slice) -> Payload:
        """Return the rank's chunk of the first N rows of each level (P, h); no rows where there is none."""
        cut = [level[: self._set_tokens].chunk(self.ranks) for level in payload]
        return tuple(parts[self.rank] if self.rank < len(parts) else parts[0][:0] for parts in cut)


class WrongRanksRows(SequenceParallel):
    """An engine whose ranks each add their neighbour's payload, whose shape fits, so that nothing raises."""

    @override
    def payload_rows(self, payload: Payload, own: slice) -> Payload:
        """Return the rows of the next rank of each level (P, h); the last rank has those of the first."""
        neighbour = self._rows(payload[0].size(0), (self.rank + 1) % self.ranks)
        return tuple(level[neighbour] for level in payload)
