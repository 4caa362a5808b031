"""A negative count is taken for none, as a slice takes it."""

from torch import Tensor

from deepstack_harness.revisions.reference import ReferenceBuffer


class AcceptsNegativeGet(ReferenceBuffer):
    """Breaks R8."""

    def get(self, tokens: int) -> tuple[Tensor, ...] | None:
        """No rows."""
        return super().get(max(tokens, 0))
