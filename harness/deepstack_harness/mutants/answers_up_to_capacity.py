"""Asked for more rows than it has, it gives those it has, as vLLM 0.11 .. 0.19.1 do."""

from torch import Tensor

from deepstack_harness.revisions.reference import ReferenceBuffer


class AnswersUpToCapacity(ReferenceBuffer):
    """Breaks R4."""

    def get(self, tokens: int) -> tuple[Tensor, ...] | None:
        """A slice ends where its tensor ends."""
        return super().get(min(tokens, self.capacity))
