"""Asked for all its rows, it leaves out the last one."""

from torch import Tensor

from deepstack_harness.revisions.reference import ReferenceBuffer


class OneRowShortAtCapacity(ReferenceBuffer):
    """Breaks R2: off by one at the capacity."""

    def get(self, tokens: int) -> tuple[Tensor, ...] | None:
        """P - 1 rows where P is the capacity; growth gives all."""
        rows = tokens - (tokens == self.capacity)
        answer = super().get(tokens)
        return answer and tuple(level[:rows] for level in answer)
