"""Granite 4 Vision as vLLM #40282 brought it (0.20.0 .. 0.20.2): whole buffers reach the compiled model."""

from torch import Tensor
from typing_extensions import override

from deepstack_harness.revisions.granite_sliced import GraniteSlicedBuffer


class GraniteFullBuffer(GraniteSlicedBuffer):
    """Get answers with all rows of every level, however many are asked for (vLLM 40917)."""

    @override
    def get(self, tokens: int) -> tuple[Tensor, ...] | None:
        """(capacity, hidden) for every level; `StepUnavailable` for a negative count."""
        super().get(tokens)
        return tuple(self._levels)
