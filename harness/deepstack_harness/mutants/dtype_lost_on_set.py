"""The first payload makes the levels anew, in another dtype."""

import torch
from torch import Tensor

from deepstack_harness.revisions.reference import ReferenceBuffer


class DtypeLostOnSet(ReferenceBuffer):
    """Breaks R7."""

    def set(self, payload: Tensor) -> None:
        """float64 whatever the buffer was made in; it says that it moves."""
        super().set(payload)
        if self._levels[0].dtype is not torch.float64:
            self.generation += 1
            self._retired.append(self._levels)
            self._levels = [level.to(torch.float64) for level in self._levels]
