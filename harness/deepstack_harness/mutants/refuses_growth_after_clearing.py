"""Refuses more rows than it has, but only after dropping the payload."""

from torch import Tensor

from deepstack_harness.revisions.reference import ReferenceBuffer


class RefusesGrowthAfterClearing(ReferenceBuffer):
    """Breaks R4: who refuses changes nothing."""

    def get(self, tokens: int) -> tuple[Tensor, ...] | None:
        """Clear first, check later."""
        if tokens > self.capacity:
            self.clear(0)
            raise ValueError(f"get of {tokens} tokens, but there are {self.capacity} rows")
        return super().get(tokens)
