"""Every third answer is a list, all others are tuples."""

from torch import Tensor

from deepstack_harness.revisions.reference import ReferenceBuffer


class ListsAndTuples(ReferenceBuffer):
    """Breaks R11: another type is another graph."""

    _gets = 0

    def get(self, tokens: int) -> tuple[Tensor, ...] | None:
        """The right tensors in the wrong bag."""
        answer = super().get(tokens)
        self._gets += 1
        return list(answer) if answer and self._gets % 3 == 0 else answer  # type: ignore[return-value]
