"""Of a payload above the capacity it keeps what fits, and says nothing."""

from torch import Tensor

from deepstack_harness.revisions.reference import ReferenceBuffer


class SetCutToCapacity(ReferenceBuffer):
    """Breaks R4."""

    def set(self, payload: Tensor) -> None:
        """The capacity's first rows."""
        super().set(payload[:, : self.capacity])
