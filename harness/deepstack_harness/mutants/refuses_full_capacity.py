"""Refuses a payload of exactly its capacity."""

from torch import Tensor

from deepstack_harness.revisions.reference import ReferenceBuffer


class RefusesFullCapacity(ReferenceBuffer):
    """Breaks R2: off by one at the capacity."""

    def set(self, payload: Tensor) -> None:
        """`>=` where `>` was meant."""
        if self._check(payload) == self.capacity:
            raise ValueError(f"payload of {payload.size(1)} tokens does not fit {self.capacity} rows")
        super().set(payload)
