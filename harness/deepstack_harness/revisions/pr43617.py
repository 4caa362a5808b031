"""vLLM #43617 (0.23.0 .. 0.27): get never answers None, and resizes too."""

from torch import Tensor

from deepstack_harness.revisions.original import OriginalBuffer
from deepstack_harness.revisions.pr40932 import Pr40932Buffer


class Pr43617Buffer(Pr40932Buffer):
    """Zeros when empty; a get above the capacity grows and loses the payload."""

    def get(self, tokens: int) -> tuple[Tensor, ...] | None:
        """Slices of `tokens` rows, always."""
        if tokens > self.capacity:
            self.resize(tokens)
        return OriginalBuffer.get(self, tokens)

    def resize(self, tokens: int) -> None:
        """New zeroed storage of `tokens` rows: nothing is copied, the counter stays."""
        self._reallocate(tokens)
