"""Of a payload with too few levels, those that are missing are zero."""

import torch
from torch import Tensor

from deepstack_harness.revisions.reference import ReferenceBuffer


class AcceptsMissingLevels(ReferenceBuffer):
    """Breaks R8."""

    def set(self, payload: Tensor) -> None:
        """Zeros for what is missing."""
        missing = payload.new_zeros(max(0, len(self._levels) - len(payload)), *payload.shape[1:])
        super().set(torch.cat([payload, missing]))
