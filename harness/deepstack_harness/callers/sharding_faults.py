"""Ranks that share hidden states rightly, and get wrong rows of the payload with them."""

from torch import Tensor

from deepstack_harness.callers.sequence_parallel import Payload, SequenceParallel
from deepstack_harness.contract.protocols import Buffer


class PayloadNotSharded(SequenceParallel):
    """Every rank adds the whole payload to its own rows (sglang 18098, vllm-ascend 7565 and 7897)."""

    def payload_rows(self, payload: Payload, own: slice) -> Payload:
        """All P rows."""
        return payload


class PayloadShardedUnpadded(SequenceParallel):
    """The payload is split by the N tokens that were set, the hidden states by the P they were padded to."""

    _set_tokens: int | None = None

    def set(self, buffer: Buffer, payload: Tensor) -> None:
        """Hand over a payload (levels, N, hidden), and remember N."""
        self._set_tokens = payload.size(1)
        super().set(buffer, payload)

    def payload_rows(self, payload: Payload, own: slice) -> Payload:
        """The rank's part of N rows, the first ranks having one more where N does not divide evenly."""
        return tuple(level[: self._set_tokens].tensor_split(self.ranks)[self.rank] for level in payload)


class WrongRanksRows(SequenceParallel):
    """Each rank adds the payload of its neighbour: the shapes fit, and nothing complains."""

    def payload_rows(self, payload: Payload, own: slice) -> Payload:
        """The rows of the next rank, of the first one for the last."""
        neighbour = self._rows(payload[0].size(0), (self.rank + 1) % self.ranks)
        return tuple(level[neighbour] for level in payload)
