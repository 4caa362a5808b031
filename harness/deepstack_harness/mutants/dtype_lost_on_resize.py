"""New storage falls back to another dtype."""

import torch

from deepstack_harness.revisions.reference import ReferenceBuffer


class DtypeLostOnResize(ReferenceBuffer):
    """Breaks R7."""

    def resize(self, tokens: int) -> None:
        """float64 whatever the buffer was made in; every payload of less precision is kept exactly."""
        super().resize(tokens)
        self._levels = [level.to(torch.float64) for level in self._levels]
